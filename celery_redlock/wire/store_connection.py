"""One open connection to a store, for a node, a listener or an operator's command.

::

    Node ── send ──► StoreConnection ── running() ──► store ── socket ──► server
         ◄─ replies ─                ◄─ waits for its socket ─

The thread that drives the nodes carries out the requests itself, up to where the store
waits for its server. Then it waits for the sockets of all nodes, and goes on where one
can be read. What is sent meanwhile runs together, in the next transaction.

A store whose driver blocks has a thread (`_StoreThread`), which gets requests and gives
back replies. So does a listener.

A connection is used by one thread at a time. Another one that closes it meanwhile only
interrupts it: who uses it closes it then.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from selectors import EVENT_READ
from typing import TYPE_CHECKING, Any, cast

from celery_redlock.basics.callbacks import log_safely
from celery_redlock.basics.process import start_thread
from celery_redlock.basics.resp import word_of
from celery_redlock.basics.selector import Waker
from celery_redlock.basics.text import MOST_TOLD, fields_of, printable_line
from celery_redlock.stores.connection import StoreError, store_of
from celery_redlock.wire.connection import ConnectionLost, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from celery_redlock.stores.connection import Command, DirectStore, Store, Waits
    from celery_redlock.wire.connection import NodeFacts
    from celery_redlock.wire.requests import ScriptRequest
    from celery_redlock.wire.url import NodeAddress


log = logging.getLogger(__name__)

_NO_THREAD = "cannot be used: there can be no new thread"


def open_store(address: NodeAddress, timeout: float) -> StoreConnection | str:
    """Connect to a store, blocking; return in words why that failed."""
    try:
        store = store_of(address.url)(address.url.reveal(), timeout)
        try:
            return StoreConnection(store)
        except BaseException:
            store.close()
            raise
    except StoreError as error:
        return printable_line(str(error), MOST_TOLD)


# What a forked child has of its parent's, for ever: to collect it would end it.
_of_parents: list[object] = []


class StoreConnection:
    """One open connection to a store: see `wire.connection.Connection`.

    Args:
        store: A connection of its driver, for this one alone.

    Attributes:
        facts: The server's description of itself.
        sent_scripts: Always None: it has all scripts, which run here.
        sock: Has the number of the socket to wait for.
        events: The events of the socket to wait for.
    """

    sent_scripts: set[str] | None = None

    def __init__(self, store: Store) -> None:
        self._store = store
        (info,) = store.run([[b"INFO"]])
        fields = fields_of(info.decode(errors="replace"))
        self.facts: NodeFacts = facts_of(fields, fields, fields)
        self.events = EVENT_READ
        runs: Any = store if hasattr(store, "running") else _StoreThread(store)
        self._runs: DirectStore | _StoreThread = runs
        self.sock: DirectStore | _StoreThread | _Listening = runs
        self._sent: deque[Command] = deque()  # and not begun
        self._waits: Waits[list[Any]] | None = None
        self._replies: deque[Any] = deque()
        self._used = threading.Lock()
        self._is_closed = False
        self._pid = os.getpid()
        self._end = self._ended_by(runs.close)

    @property
    def is_working(self) -> bool:
        """Whether something was sent that has not been carried out."""
        works = self._used.locked() or self._waits is not None or bool(self._sent)
        return works and not self._is_closed

    def send(self, requests: Sequence[ScriptRequest]) -> None:
        """Begin to carry requests out, or do so when those before them are done.

        Raises:
            ConnectionLost: The connection is lost.
        """
        if self._is_closed:
            raise ConnectionLost("was closed")
        self._sent.extend([_command_of(request.words) for request in requests])
        if self._waits is None:
            self._go_on()

    def flush(self) -> None:
        """Go on where the socket takes bytes again."""
        self._go_on()

    def replies(self) -> Iterator[Any]:
        """Go on, and yield the replies that are there.

        Raises:
            ConnectionLost: The connection is lost.
        """
        if isinstance(self.sock, _Listening):
            yield from self.sock.messages()
            return
        lost = None
        try:
            self._go_on()
        except ConnectionLost as error:
            lost = error
        while self._replies:
            yield self._replies.popleft()
        if lost:
            raise lost

    def _go_on(self) -> None:
        """Carry out until the store waits, or nothing is to be done."""
        if not self._used.acquire(blocking=False):
            if self._is_closed:
                raise ConnectionLost("was closed")
            return  # another thread goes on
        try:
            if self._waits is None and not self._sent:
                self._runs.check()
            while self._waits or self._sent:
                waits, self._waits = self._waits, None
                if waits is None:
                    commands = [*self._sent]
                    self._sent.clear()
                    waits = self._runs.running(commands)
                try:
                    self.events = next(waits)
                except StopIteration as end:
                    self._replies.extend(end.value)
                    self.events = EVENT_READ
                else:
                    self._waits = waits
                    return
        except StoreError as error:
            lost = ConnectionLost(str(error))
            lost.may_be_done = error.may_be_done
            raise lost from None
        finally:
            self._used.release()
            if self._is_closed:
                self.close()

    def ask(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Carry operators' commands out, and return the replies. Blocks.

        Raises:
            ConnectionLost: The connection is lost, or the store did not answer.
        """
        asked = [_command_of(map(word_of, command)) for command in commands]
        try:
            return self._store.run(asked)
        except StoreError as error:
            raise ConnectionLost(str(error)) from None

    def subscribe(self, channel: str) -> None:
        """Have the messages on a channel among the replies, from now on.

        Raises:
            ConnectionLost: There can be no thread.
        """
        listening = _Listening(self._store, channel.encode())
        self._end.detach()
        self._end = self._ended_by(listening.close)
        self.sock = listening
        listening.start()

    def _ended_by(self, close: Callable[[], None]) -> weakref.finalize[..., Self]:
        """Have the store closed also where the service is dropped without `close`."""
        end = weakref.finalize(self, _end_in, os.getpid(), close)
        end.atexit = False
        return end

    def close(self) -> None:
        """Close the connection, or interrupt the thread that uses it."""
        self._is_closed = True
        if self._pid != os.getpid():
            return
        if self._used.acquire(blocking=False):
            self._end()  # and nothing uses it any more
        else:
            self._store.interrupt()

    def disown(self) -> None:
        """Leave the connection to the parent, in a forked child."""
        self._is_closed = True
        self._end.detach()
        _of_parents.append(self)


def _end_in(pid: int, close: Callable[[], None]) -> None:
    if pid == os.getpid():
        close()
    else:  # a forked child has dropped it: to close it would end its parent's
        _of_parents.append(close)


class _StoreThread:
    """Carries commands out in a thread: a store that blocks, for one that must not."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: deque[Sequence[Command] | None] = deque()  # None: the end
        self._done: deque[list[Any] | StoreError] = deque()
        self._news = threading.Lock()  # free while something is asked
        self._news.acquire()
        self._waker = Waker()
        self._has_thread = False

    def fileno(self) -> int:
        return self._waker.fileno()

    def check(self) -> None:
        """Do nothing: the driver connects again by itself."""
        self._waker.receive()

    def running(self, commands: Sequence[Command]) -> Waits[list[Any]]:
        """Have the thread do what ``run`` does, and yield until it is done."""
        if not self._has_thread:
            self._has_thread = start_thread(self._run)
        if not self._has_thread:
            raise StoreError(_NO_THREAD)
        self._ask(commands)
        while not self._done:
            yield EVENT_READ
            self._waker.receive()
        done = self._done.popleft()
        if isinstance(done, StoreError):
            raise done
        return done

    def close(self) -> None:
        """Have the thread end, and close the store."""
        if self._has_thread:
            self._ask(None)
            self._store.interrupt()
        else:
            self._end()

    def _ask(self, commands: Sequence[Command] | None) -> None:
        self._asked.append(commands)
        try:  # noqa: SIM105
            self._news.release()
        except RuntimeError:  # it has not looked at the last one yet
            pass

    def _end(self) -> None:
        self._store.close()
        self._waker.close()

    def _run(self) -> None:
        while True:
            self._news.acquire()
            while self._asked:
                commands = self._asked.popleft()
                if commands is None:
                    self._end()
                    return
                self._done.append(_carried_out(self._store, commands))
                self._waker.wake()


def _carried_out(store: Store, commands: Sequence[Command]) -> list[Any] | StoreError:
    try:
        return store.run(commands)
    except StoreError as error:
        return error
    except Exception as error:  # noqa: BLE001  (it is logged)
        text = "A store met an error. It is connected to again."
        log_safely(log, logging.ERROR, text, exc_info=True)
        return StoreError(f"met an error: {type(error).__name__}: {error}")


class _Listening:
    """A thread that listens on a channel of a store."""

    def __init__(self, store: Store, channel: bytes) -> None:
        self._store = store
        self._channel = channel
        self._found: deque[Any] = deque()
        self._waker, self._stop = Waker(), Waker()
        self._has_ended = False

    def start(self) -> None:
        if not start_thread(self._run):
            self._has_ended = True
            raise ConnectionLost(_NO_THREAD)

    def fileno(self) -> int:
        return self._waker.fileno()

    def messages(self) -> Iterator[Any]:
        self._waker.receive()
        has_ended = self._has_ended  # before: what it has sent is there
        while self._found:
            yield self._found.popleft()
        if has_ended:
            raise ConnectionLost("closed the connection")

    def close(self) -> None:
        if self._has_ended:
            self._store.close()
        else:
            self._stop.wake()
            self._store.interrupt()

    def _run(self) -> None:
        try:
            for message in self._store.listen(self._channel, cast("Any", self._stop)):
                word = b"message" if message else b"subscribe"
                self._found.append([word, self._channel, message])
                self._waker.wake()
        except StoreError:
            pass
        except Exception:
            log.exception("A listener of a store met an error. It is started again.")
        finally:
            self._store.close()
            self._has_ended = True
            self._waker.wake()


def _command_of(words: Iterable[str | bytes]) -> Command:
    return [one if isinstance(one, bytes) else one.encode() for one in words]
