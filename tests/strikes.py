"""An exception out of nowhere: what a time limit does to the code that it strikes."""

from __future__ import annotations

import dis
import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Strike", "Struck"]


class Struck(Exception):  # noqa: N818  (as Celery's SoftTimeLimitExceeded)
    """What a time limit throws into a thread, anywhere."""


class Strike:
    """Raises once inside of some code, where CPython can throw an exception in.

    That is on entry to a function, on a jump backward, and after a call of what is
    written in C; so not between the start of a ``finally`` and the release that is
    its first call (``CHECK_EVAL_BREAKER`` in CPython's ``ceval.c``).

    Args:
        at: The place in which it raises, counted from 1.
        below: Where the code is: how its file names begin.

    Attributes:
        at: The same.
        done: How many places were passed.
    """

    def __init__(self, at: int, below: str) -> None:
        self.at = at
        self._below = below
        self.done = 0
        self._before: Any = None
        self._last: dict[FrameType, str] = {}  # what each frame did last

    @property
    def has_struck(self) -> bool:
        """Whether it came so far."""
        return self.done >= self.at

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self._last.clear()

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002
        if frame.f_back in self._last:
            self._last[frame.f_back] = "a function in Python"
        if self.has_struck or not frame.f_code.co_filename.startswith(self._below):
            return None
        frame.f_trace_opcodes = True
        self._last[frame] = ""
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # it may be closing
            self._pass()
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002
        if event == "opcode" and not self.has_struck:
            last = self._last[frame]
            self._last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if last.startswith(("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")):
                self._pass()
        return self._step

    def _pass(self) -> None:
        self.done += 1
        if self.has_struck:
            raise Struck
