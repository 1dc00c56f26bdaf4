"""Steps that tests of fenced rows share, by Django and by SQLAlchemy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = ["SOON", "add", "stored"]

SOON = 20.0  # seconds within which something happens at once, on a busy machine too


def stored(row: Any) -> tuple[str, int]:
    """Read a row of Django's as it is stored now."""
    rows = type(row).objects.using(row._state.db)  # noqa: SLF001  (documented)
    text, fence = rows.values_list("text", "fence").get(pk=row.pk)
    return text, fence


def add(session: Session, row: Any) -> Any:
    """Store a row of SQLAlchemy's."""
    session.add(row)
    session.commit()
    return row
