"""Base class of observers that receive the signals of one app, such as metrics.

An observer is installed once for an app, ignores the signals of other apps, and can be
uninstalled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from celery_redlock.app.runtime import app_itself

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

_T = TypeVar("_T", bound="Observer")


class Observer:
    """A set of signal receivers for one app."""

    def __init__(self, app: Celery) -> None:
        self.app = app_itself(app)
        self._receivers: list[tuple[Any, Callable[..., None]]] = []

    def listen(self, signal: Any, receiver: Callable[..., None]) -> None:
        """Connect a receiver to this signal, for the signals of the app."""

        def receive(sender: object = None, **named: Any) -> None:
            if app_itself(getattr(sender, "app", None)) is self.app:
                receiver(sender=sender, **named)

        self.listen_to_all(signal, receive)

    def listen_to_all(self, signal: Any, receiver: Callable[..., None]) -> None:
        """Connect a receiver to this signal, for the signals of all apps."""
        self._receivers.append((signal, receiver))
        signal.connect(receiver, weak=False)

    def uninstall(self) -> None:
        """Disconnect all receivers. Twice is harmless."""
        receivers, self._receivers = self._receivers, []
        for signal, receiver in receivers:
            signal.disconnect(receiver)
        vars(self.app).pop(_attribute(type(self)), None)


def install_once(app: Celery, kind: type[_T], **options: Any) -> _T:
    """Return the app's observer of this kind. The first call makes it."""
    observer = installed(app, kind)
    if observer is None:
        app = app_itself(app)
        observer = kind(app, **options)
        setattr(app, _attribute(kind), observer)
    return observer


def installed(app: Celery, kind: type[_T]) -> _T | None:
    """Return the app's observer of this kind, if there is one."""
    observer: _T | None = vars(app_itself(app)).get(_attribute(kind))
    return observer


def _attribute(kind: type) -> str:
    return f"_redlock_{kind.__name__.lower()}"
