"""Selectors that watch sockets only while a caller waits, and a way to wake one.

gevent's own selector goes on watching when ``select`` has returned. A reply that comes
after its verdict is then readable until the next use, and gevent's loop turns at full
speed. Here a socket is watched from the start of ``select`` to its end.

eventlet's own selector switches to the caller once for each socket that is ready. If
two are ready at the same moment, the second switch ends the caller's next wait: a
sleep, or another ``select``, which then returns nothing, as if its time were over. Here
the caller waits for an event, which is set once.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import weakref
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_READ_SIZE = 4096
_POLLIN, _POLLOUT = 1, 4  # in every system; gevent removes the names it replaces
_EVENTLET_KINDS = {selectors.EVENT_READ: "read", selectors.EVENT_WRITE: "write"}


def new_selector() -> selectors.BaseSelector:
    """Return a selector that lets other threads or greenlets run while it waits."""
    if sys.platform == "win32":
        return _WindowsSelector()
    if _is_patched("eventlet.patcher", "is_monkey_patched"):
        return _EventletSelector()
    if _is_patched("gevent.monkey", "is_module_patched"):
        return _GeventSelector()
    return selectors.DefaultSelector()


def _is_patched(module: str, function: str) -> bool:
    """Tell whether this library has replaced ``select`` in this process.

    A module that another thread is just importing has no such function yet.
    """
    tells = getattr(sys.modules.get(module), function, None)
    return tells is not None and bool(tells("select"))


class Waker:
    """Ends the ``select`` of another thread: register it as a node is registered."""

    __slots__ = ("__weakref__", "_close", "_read_end", "_write_end")

    def __init__(self) -> None:
        # Not a pipe: Windows can watch sockets only.
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.settimeout(0)
        self._write_end.settimeout(0)
        # For a service that is dropped without ``close``.
        self._close = weakref.finalize(
            self, _close_both, self._read_end, self._write_end
        )
        self._close.atexit = False

    def fileno(self) -> int:
        """Return the end to watch."""
        return self._read_end.fileno()

    def wake(self) -> None:
        """Make the watched end readable."""
        try:  # noqa: SIM105  (a context manager costs as much as the system call)
            self._write_end.send(b".")
        except OSError:  # it is full, or closed just now
            pass

    def receive(self) -> None:
        """Read the bytes of all wake-ups so far."""
        try:  # noqa: SIM105
            self._read_end.recv(_READ_SIZE)
        except OSError:
            pass

    def close(self) -> None:
        """Close both ends."""
        self._close()


def _close_both(*ends: socket.socket) -> None:
    for end in ends:
        end.close()


class _WindowsSelector(selectors.SelectSelector):
    """A selector for Windows, which refuses to wait for no socket at all."""

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; wait also if nothing is registered."""
        if self.get_map():
            return super().select(timeout)
        SYSTEM_CLOCK.sleep(max(0.0, timeout or 0.0))
        return []


class _GreenSelector(selectors.BaseSelector):
    """A selector for greenlets, which asks the system what is ready."""

    def __init__(self, poll: Any) -> None:
        self._poll = poll
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(
        self, fileobj: Any, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        """Watch a socket that is not watched yet."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} is registered already")
        self._poll.register(fd, _poll_mask(events))
        self._keys[fd] = key = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Watch a socket no more; it may be closed already."""
        for fd, key in list(self._keys.items()):
            if key.fileobj is fileobj:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(fd)
                return self._keys.pop(fd)
        raise KeyError(f"{fileobj!r} is not registered")

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; let other greenlets run until something is."""
        ready = self._ready()
        if ready or (timeout is not None and timeout <= 0):
            return ready
        self._wait(timeout)
        return self._ready()

    def _wait(self, timeout: float | None) -> None:
        """Let other greenlets run until something is ready."""
        raise NotImplementedError

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        found = []
        for fd, mask in self._poll.poll(0):
            key = self._keys.get(fd)
            if key is not None:
                events = selectors.EVENT_WRITE if mask & _POLLOUT else 0
                # An error is found by reading.
                events |= selectors.EVENT_READ if mask & ~_POLLOUT else 0
                found.append((key, events))
        return found

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return the keys by their file descriptors."""
        return self._keys

    def close(self) -> None:
        """Watch no socket any more."""
        self._keys.clear()


class _GeventSelector(_GreenSelector):
    """A selector for gevent, whose watchers are active during ``select`` only.

    They belong to the loop of the thread that waits. Threads of gevent's pool have
    loops of their own, and may not touch those of others.
    """

    def __init__(self) -> None:
        from gevent import event, get_hub, monkey  # noqa: PLC0415  (an extra)

        super().__init__(monkey.get_original("select", "poll")())
        self._new_event: Callable[[], Any] = event.Event
        self._get_hub: Callable[[], Any] = get_hub

    def _wait(self, timeout: float | None) -> None:
        event, loop = self._new_event(), self._get_hub().loop
        keys = list(self._keys.values())
        watchers = [loop.io(key.fd, key.events) for key in keys]  # 1 and 2 in both
        try:
            for watcher in watchers:
                watcher.start(event.set)
            event.wait(timeout)
        finally:
            for watcher in watchers:
                watcher.stop()
                watcher.close()


class _EventletSelector(_GreenSelector):
    """A selector for eventlet, which wakes the caller once."""

    def __init__(self) -> None:
        from eventlet import event, hubs, patcher  # noqa: PLC0415  (an extra)

        super().__init__(patcher.original("select").poll())
        self._new_event: Callable[[], Any] = event.Event
        self._hubs: Any = hubs

    def _wait(self, timeout: float | None) -> None:
        event, hub, listeners = self._new_event(), self._hubs.get_hub(), []

        def wake(*_: object) -> None:
            if not event.ready():
                event.send()

        try:
            for key in list(self._keys.values()):
                for kind, name in _EVENTLET_KINDS.items():
                    if key.events & kind:
                        added = hub.add(name, key.fd, wake, wake, wake)
                        listeners.append(added)
            event.wait(timeout)
        finally:
            for listener in listeners:
                hub.remove(listener)


def _poll_mask(events: int) -> int:
    reads = _POLLIN if events & selectors.EVENT_READ else 0
    return reads | (_POLLOUT if events & selectors.EVENT_WRITE else 0)
