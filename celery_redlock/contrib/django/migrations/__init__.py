"""Migrations of the app.

``0001_initial`` makes the table of records of calls, ``0002_outboxmessage`` that of the
messages in the outbox, ``0003_redlock_keys`` that of the locks of a PostgreSQL.
``0004_outboxmessage_taken_until`` adds the column that keeps two processes from
publishing one message.
"""
