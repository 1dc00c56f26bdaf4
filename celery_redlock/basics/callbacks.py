"""Calls callbacks of users from threads that must not end with their errors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


log = logging.getLogger(__name__)


def call_safely(callback: Callable[..., object] | None, *args: object) -> None:
    """Call a callback, if there is one. Log its error, and go on."""
    if callback is None:
        return
    try:
        callback(*args)
    except Exception:
        log.exception("The callback %r raised an error.", callback)
