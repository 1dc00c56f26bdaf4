"""Write down the signals of locks while a block runs.

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

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["SignalRecorder", "Signalled"]


@dataclass(frozen=True, slots=True)
class Signalled:
    """One signal that was sent.

    Attributes:
        name: Of the signal, such as ``"lock_acquired"``.
        sender: The task, as a rule.
        named: The signal's arguments; see ``celery_redlock.signals``.
    """

    name: str
    sender: Any
    named: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.named[name]
        except KeyError:
            raise AttributeError(f"{self.name} came without {name!r}") from None


class SignalRecorder:
    """Records signals in this process, in the order in which they were sent.

    A context manager, to be entered once at a time. Threads may send.

    Args:
        names: Of the signals to record; all of ``celery_redlock.signals`` by
            default.
    """

    def __init__(self, *names: str) -> None:
        self._only = names
        self._seen: list[Signalled] = []
        self._news = threading.Condition()
        self._receivers: list[tuple[Any, Any]] = []

    @property
    def seen(self) -> list[Signalled]:
        """What was sent so far."""
        with self._news:
            return list(self._seen)

    @property
    def names(self) -> list[str]:
        """The names of what was sent so far."""
        return [signalled.name for signalled in self.seen]

    def of(self, name: str) -> list[Signalled]:
        """Return what was sent of one signal so far."""
        return [signalled for signalled in self.seen if signalled.name == name]

    def wait_for(
        self, name: str, *, count: int = 1, timeout: float = 10.0
    ) -> Signalled:
        """Return the signal of this name, the ``count``-th, when it was sent.

        Args:
            name: Of the signal.
            count: 1 for the first.
            timeout: Seconds to wait for it.

        Raises:
            AssertionError: It was not sent in time.
        """
        with self._news:
            if self._news.wait_for(lambda: len(self.of(name)) >= count, timeout):
                return self.of(name)[count - 1]
        raise AssertionError(
            f"{name} was sent {len(self.of(name))} times within {timeout:g} s and not "
            f"{count}. There was: {', '.join(self.names) or 'nothing'}."
        )

    def __enter__(self) -> Self:
        # By name and not before: this package serves those without Celery, too.
        signals = importlib.import_module("celery_redlock.signals")
        for name in self._only or signals.__all__:
            signal = getattr(signals, name)
            if hasattr(signal, "connect"):
                receiver = self._receiver(name)
                signal.connect(receiver, weak=False)
                self._receivers.append((signal, receiver))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        receivers, self._receivers = self._receivers, []
        for signal, receiver in receivers:
            signal.disconnect(receiver)

    def _receiver(self, name: str) -> Any:
        def record(sender: Any, **named: Any) -> None:
            named.pop("signal", None)
            with self._news:
                self._seen.append(Signalled(name, sender, named))
                self._news.notify_all()

        return record
