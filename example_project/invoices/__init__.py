"""Invoices, with numbers that have no gaps and no duplicates."""
