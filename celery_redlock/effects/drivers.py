"""Asks database drivers about their connections, the same way for both ORMs."""

from __future__ import annotations

from typing import Any

_IDLE = 0  # libpq's word for a connection that is in no transaction


def is_in_transaction(raw: Any) -> bool:
    """Tell whether the connection of a driver is in a transaction.

    The drivers of SQLite and PostgreSQL can say so. For others the answer is yes.
    """
    if raw is None:
        return False
    if isinstance(inside := getattr(raw, "in_transaction", None), bool):
        return inside
    status = getattr(getattr(raw, "info", None), "transaction_status", None)
    return status is None or bool(status != _IDLE)
