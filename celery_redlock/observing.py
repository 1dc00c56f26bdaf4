"""What those share who watch an app's locks through its signals.

They are installed in an app once, hear of its locks and not of another app's, and
can be taken out again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Observer", "goes_on_waiting", "install_once", "word_of"]

_T = TypeVar("_T", bound="Observer")


class Observer:
    """Receives signals that are sent for one app.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self.app = _app_itself(app)
        self._receivers: list[tuple[Any, Callable[..., None]]] = []

    def listen(self, signal: Any, receiver: Callable[..., None]) -> None:
        """Have the receiver called whenever this signal is sent for the app."""

        def receive(sender: Any = None, **named: Any) -> None:
            if _app_itself(getattr(sender, "app", None)) is self.app:
                receiver(sender=sender, **named)

        self.listen_to_all(signal, receive)

    def listen_to_all(self, signal: Any, receiver: Callable[..., None]) -> None:
        """Have the receiver called whenever this signal is sent, for whomever."""
        self._receivers.append((signal, receiver))
        signal.connect(receiver, weak=False)

    def uninstall(self) -> None:
        """Hear of nothing more. Twice is harmless."""
        receivers, self._receivers = self._receivers, []
        for signal, receiver in receivers:
            signal.disconnect(receiver)
        vars(self.app).pop(_attribute(type(self)), None)


def install_once(app: Any, kind: type[_T], **options: Any) -> _T:
    """Return the app's observer of this kind, made on first use."""
    app, name = _app_itself(app), _attribute(kind)
    observer: _T | None = vars(app).get(name)
    if observer is None:
        observer = kind(app, **options)
        setattr(app, name, observer)
    return observer


def word_of(decision: object) -> str:
    """Return what was decided in a word: ``"skip"``, ``"buffer_one"``."""
    if decision is None:
        return "none"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(decision).__name__).lower()


def goes_on_waiting(decision: object) -> bool:
    """Tell whether the call keeps its worker's slot and tries for the lock again."""
    return word_of(decision) in ("wait", "cancel_running")


def _app_itself(app: Any) -> Any:
    return getattr(app, "_get_current_object", lambda: app)()  # what a proxy stands for


def _attribute(kind: type) -> str:
    return f"_redlock_{kind.__name__.lower()}"
