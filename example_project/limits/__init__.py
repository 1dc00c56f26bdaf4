"""Fetching for ten tenants, from a service that limits how many and how often."""
