"""Integrations with other packages. Each needs its extra, and nothing needs it.

``django`` and ``sqlalchemy`` have the storage half of a fence: a column, and writes
that are refused once a later holder of the lock has written. They also store records of
calls, for tasks with ``exactly_once_in``, and the messages of an ``Outbox``.
``django`` is also an app for ``INSTALLED_APPS``. ``celery_redlock.effects`` has what
both share.
"""

__all__ = ["django", "sqlalchemy"]
