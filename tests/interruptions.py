"""Asynchronous exceptions at a chosen instruction, as a time limit raises them."""

from __future__ import annotations

import dis
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

# A release test leaves these tests out: the places differ between versions of CPython.
counts_places = pytest.mark.counts_places


class Interrupted(Exception):  # noqa: N818  (as Celery's SoftTimeLimitExceeded)
    """The exception of an interruption."""


class Interruption:
    """Raises `Interrupted` once in some code, where CPython can raise an exception.

    These places are the entry of a function, a jump backward, and the return from a
    call of C code. There is no place between the start of a ``finally`` and its first
    call (``CHECK_EVAL_BREAKER`` in CPython's ``ceval.c``). The ``with`` block ends at
    the interruption, without an exception.

    Args:
        at: The place of the exception, counted from 1.
        below: The beginning of the file names of the code.

    Attributes:
        at: The same.
        passed: The number of places that the code has passed.
    """

    def __init__(self, at: int, below: str) -> None:
        self.at = at
        self._below = below
        self.passed = 0
        self._before: Any = None
        # The last instruction of each frame, and its offset.
        self._last: dict[FrameType, tuple[str, int]] = {}

    @property
    def was_raised(self) -> bool:
        """Whether the code has come to the place."""
        return self.passed >= self.at

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._enter)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._before)
        self._last.clear()
        return kind is Interrupted

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002
        if frame.f_back in self._last:
            self._last[frame.f_back] = "a function in Python", 0
        if self.was_raised or not frame.f_code.co_filename.startswith(self._below):
            return None
        frame.f_trace_opcodes = True
        self._last[frame] = "", 0
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # it may be closing
            self._pass()
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002
        if event == "opcode" and not self.was_raised:
            last, offset = self._last[frame]
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self._last[frame] = name, frame.f_lasti
            # The condition of a loop jumps in CPython 3.11, and not where it is over.
            jumped = last.startswith("POP_JUMP") and frame.f_lasti < offset
            if jumped or last.startswith(("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")):
                self._pass()
        return self._step

    def _pass(self) -> None:
        self.passed += 1
        if self.was_raised:
            raise Interrupted


class Visit(Interruption):
    """Calls a function at the place, as a signal handler or a finaliser is called."""

    def __init__(self, at: int, below: str, function: Callable[[], object]) -> None:
        super().__init__(at, below)
        self._function = function

    def _pass(self) -> None:
        self.passed += 1
        if self.was_raised:
            self._function()


def interruptions(below: str) -> Iterator[Interruption]:
    """Yield an interruption for each place; the last one finds no place any more."""
    for at in itertools.count(1):
        interruption = Interruption(at, below)
        yield interruption
        if not interruption.was_raised:
            return
