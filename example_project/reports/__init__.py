"""Customers, and reports on their orders."""
