"""Calls functions of users from threads that must not end with their errors.

Handlers and filters of logging are such functions, too. Python's own raise nothing. One
of a project may: for example, it sends lines to a server that is out of reach.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any

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


def log_safely(
    logger: logging.Logger, level: int, text: str, *args: object, **options: Any
) -> None:
    """Write a line of the log. Print the error of a handler, as Python does, and go on.

    For threads of this package. In a thread of the user it may hide a time limit.
    """
    try:
        logger.log(level, text, *args, stacklevel=2, **options)
    except Exception:  # noqa: BLE001  (there is no log to write it to)
        if logging.raiseExceptions:
            traceback.print_exc()
