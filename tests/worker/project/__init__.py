"""A user's project: an app and its tasks. Runs in workers; imported by tests."""
