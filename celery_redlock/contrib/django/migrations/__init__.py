"""Migrations of the app.

``0001_initial`` makes the table of records of calls, ``0002_outboxmessage`` that of the
messages in the outbox.
"""
