"""Migrations of the app.

``0001_initial`` makes the tables of records, of messages, and of a PostgreSQL's locks.
"""
