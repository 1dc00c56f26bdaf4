"""Signals that were sent, and the result of a call, for tests to assert.

::

    with SignalRecorder() as events:
        run_the_worker()
    assert events.names == ["lock_acquired", "lock_released"]
"""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.errors import DuplicateTask, LockUnavailable
from celery_redlock.scripts.keys import shown

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class Signalled:
    """One signal that was sent.

    Attributes:
        name: The name of the signal, such as ``"lock_acquired"``.
        sender: The sender: the task, or beat's scheduler.
        named: The arguments; see ``celery_redlock.signals``. Each is an attribute, too.
    """

    name: str
    sender: Any
    named: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.named[name]
        except KeyError:
            raise AttributeError(f"{self.name} has no argument {name!r}") from None


class SignalRecorder:
    """A context manager that records the signals of this process, of all threads.

    Enter it once at a time.

    Args:
        names: The signals to record; all of ``celery_redlock.signals`` by default.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._seen: list[Signalled] = []
        self._changed = threading.Condition()
        self._receivers: list[tuple[Any, Any]] = []

    @property
    def seen(self) -> list[Signalled]:
        """The signals so far, oldest first."""
        with self._changed:
            return list(self._seen)

    @property
    def names(self) -> list[str]:
        """The names of the signals so far, oldest first."""
        return [signalled.name for signalled in self.seen]

    def of(self, name: str) -> list[Signalled]:
        """Return the signals of this name so far, oldest first.

        Raises:
            ValueError: Signals of this name are not recorded.
        """
        if self._names and name not in self._names:
            hint = did_you_mean(name, self._names)
            raise ValueError(f"Signals {name!r} are not recorded. {hint}")
        return [signalled for signalled in self.seen if signalled.name == name]

    def wait_for(
        self, name: str, *, count: int = 1, timeout: float = 10.0
    ) -> Signalled:
        """Wait for a signal of this name, and return it.

        Args:
            name: The name of the signal.
            count: Which one of this name: 1 for the first.
            timeout: Seconds to wait.

        Raises:
            AssertionError: The signal was not sent in time.
            ValueError: Signals of this name are not recorded.
        """
        with self._changed:
            if self._changed.wait_for(lambda: len(self.of(name)) >= count, timeout):
                return self.of(name)[count - 1]
        raise AssertionError(
            f"{name} was sent {len(self.of(name))} times within {timeout:g} s and not "
            f"{count}. These signals were sent: {', '.join(self.names) or 'none'}."
        )

    def __enter__(self) -> Self:
        # Imported on use: the rest of this package works without Celery.
        signals = importlib.import_module("celery_redlock.signals")
        self._names = self._names or tuple(signals.__all__)
        # Before one is connected: a name that is none is an error.
        found = [(getattr(signals, n), self._receiver(n)) for n in self._names]
        for signal, receiver in found:
            signal.connect(receiver, weak=False)
        self._receivers = found
        return self

    def __exit__(self, *_: object) -> None:
        receivers, self._receivers = self._receivers, []
        for signal, receiver in receivers:
            signal.disconnect(receiver)

    def _receiver(self, name: str) -> Any:
        def record(sender: object, **named: Any) -> None:
            named.pop("signal", None)
            with self._changed:
                self._seen.append(Signalled(name, sender, named))
                self._changed.notify_all()

        return record


def assert_skipped(result: Any, *, timeout: float = 10.0) -> BaseException:
    """Assert that a call did not run because its lock was held.

    A call that was not even published (``unique_while``) did not run either.

    Args:
        result: The result of ``delay``, ``apply_async`` or ``apply``.
        timeout: Seconds to wait for the end of the call.

    Raises:
        AssertionError: The call ended in another way, or did not end in time. The
            message says how it ended.

    Returns:
        The reason, which names the holder: a `DuplicateTask`, or `QuorumUnreachable`
        for ``on_backend_error="skip"``.
    """
    conflict = getattr(result, "conflict", None)
    if conflict and conflict.holder and result.id == conflict.holder.task_id:
        # It was not published: this is the result of the other call.
        names = ("key", "held_key", "holder", "retry_after")
        return DuplicateTask(
            f"A call of {conflict.task} was not published: {shown(conflict.held_key)} "
            f"is that of {conflict.holder}.",
            **{name: getattr(conflict, name) for name in names},
        )
    try:
        result.get(timeout=timeout, propagate=False)
    except result.TimeoutError as error:
        raise AssertionError(
            f"{result!r} did not end within {timeout:g} s: it is {result.state}. "
            "Does a worker run, and does the task keep its result?"
        ) from error
    state, why = result.state, result.result
    if state == "REVOKED" and isinstance(why, LockUnavailable):
        return why
    eager = importlib.import_module("celery.result").EagerResult
    raise AssertionError(
        f"{result!r} was not skipped: it ended as {state} with {why!r}."
        + " An eager call takes a lock only if redlock_eager is True."
        * isinstance(result, eager)
    )
