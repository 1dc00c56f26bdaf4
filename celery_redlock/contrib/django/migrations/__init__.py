"""Migrations of the app: ``0001_initial`` makes the table of records of calls."""
