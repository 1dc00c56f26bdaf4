"""celery-redlock for SQLAlchemy 2: in ``fencing``, ``records`` and ``outbox``.

``fencing`` has a model that refuses a late writer: ``Fenced``, ``fenced`` and
``update_fenced``. ``records`` has what tasks with ``exactly_once_in=`` use:
``current_session`` and ``record_table``. ``outbox`` stores the messages of an
``Outbox``: ``outbox_table``.
"""

from __future__ import annotations

from celery_redlock.contrib.sqlalchemy.fencing import Fenced, fenced, update_fenced
from celery_redlock.contrib.sqlalchemy.outbox import outbox_table
from celery_redlock.contrib.sqlalchemy.records import current_session, record_table

__all__ = [
    "Fenced",
    "current_session",
    "fenced",
    "outbox_table",
    "record_table",
    "update_fenced",
]
