"""Invoices, whose numbers have no gap and no double."""
