"""celery-redlock for SQLAlchemy 2: in ``fencing`` and ``records``.

``fencing`` has a model that refuses a late writer: ``Fenced``, ``fenced`` and
``update_fenced``. ``records`` has what tasks with ``exactly_once_in=`` use:
``current_session`` and ``record_table``.
"""

from __future__ import annotations

from celery_redlock.contrib.sqlalchemy.fencing import Fenced, fenced, update_fenced
from celery_redlock.contrib.sqlalchemy.records import current_session, record_table

__all__ = ["Fenced", "current_session", "fenced", "record_table", "update_fenced"]
