"""Which customers there are, and reports on what they ordered."""
