"""Two TCP stand-ins on loopback: a proxy that misbehaves, and a scripted server."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

from celery_redlock.basics.resp import PythonReader
from celery_redlock.devnodes import DevNode, DevNodes

_HOST = "127.0.0.1"
_SOON = 10.0  # seconds


# -- The proxy -----------------------------------------------------------------------


class Proxy:
    """A proxy between clients and a server; `proxies` makes them.

    Bytes that it holds pass after `resume`, as TCP would send them again. So a request
    can reach the server long after its client has given up.

    Attributes:
        url: The URL for clients.
        target: The server for new connections.
        delay: Each chunk waits up to this number of seconds, in order.
        piece: The number of bytes in each packet that it sends.
        longest_burst: The size of the largest chunk in either direction.
    """

    def __init__(self, target: DevNode, loop: asyncio.AbstractEventLoop) -> None:
        self.target = target
        self.delay = 0.0
        self.piece = 1 << 20
        self.longest_burst = 0
        self._loop = loop
        self._requests, self._replies = asyncio.Event(), asyncio.Event()
        self._is_cut = False
        self._cut_at: bytes | None = None
        self._breaks = 0
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server((_HOST, 0), backlog=100)
        self._listener.settimeout(0)
        self.url = f"redis://{_HOST}:{self._listener.getsockname()[1]}/0"
        self._run(self._listen())
        self.resume()

    # -- from the thread of the test -----------------------------------------------

    def hold(self) -> None:
        """Let nothing pass, and lose nothing."""
        self._open(requests=False, replies=False)

    def hold_replies(self) -> None:
        """Let requests pass, and no replies."""
        self._open(requests=True, replies=False)

    def resume(self) -> None:
        """Let the held bytes pass, and all that follow."""
        self._open(requests=True, replies=True)

    def drop(self) -> None:
        """End all connections with the bytes that they hold."""
        self._run(self._abort())

    def cut(self) -> None:
        """End all connections with the bytes that they hold, and refuse new ones."""
        self._is_cut = True
        self.drop()
        self.resume()

    def mend(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    def cut_when(self, text: bytes | None) -> Callable[[], int]:
        """End each connection that would carry these bytes to the server.

        Returns:
            A function that counts the connections that have ended so since.
        """
        self._cut_at = text
        before = self._breaks
        return lambda: self._breaks - before

    def close(self) -> None:
        """End all connections and stop listening."""
        self._run(self._close())

    # -- in the thread of the loop ---------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_SOON)

    def _open(self, *, requests: bool, replies: bool) -> None:
        async def change() -> None:
            for gate, is_open in ((self._requests, requests), (self._replies, replies)):
                (gate.set if is_open else gate.clear)()

        self._run(change())

    async def _abort(self) -> None:
        for end in [*self._ends]:
            end.transport.abort()

    async def _close(self) -> None:
        self._is_cut = True
        self._loop.remove_reader(self._listener)
        self._listener.close()
        await self._abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Register a connection at once, so that ``close`` closes it.

        A server of asyncio knows some that it has not told of yet, and forgets them.
        """
        with contextlib.suppress(OSError):  # the client has gone again
            sock, _ = self._listener.accept()
            task = self._loop.create_task(self._carry(sock))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, sock))

    def _ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # perhaps before it began
            sock.close()

    async def _carry(self, sock: socket.socket) -> None:
        """Carry one connection until one end closes it."""
        reader, writer = await asyncio.open_connection(sock=sock)
        ends = {writer}
        self._ends.add(writer)
        try:
            there = await asyncio.open_connection(_HOST, self.target.port)
            ends.add(there[1])
            self._ends |= ends
            if self._is_cut:
                return
            pumps = [
                asyncio.ensure_future(self._pump(reader, there[1], self._requests)),
                asyncio.ensure_future(self._pump(there[0], writer, self._replies)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            return  # the server refuses: so does the proxy
        finally:
            for end in ends:
                end.transport.abort()
            self._ends -= ends

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gate: asyncio.Event,
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.delay:
                await asyncio.sleep(random.uniform(0, self.delay))  # noqa: S311  (no secret)
            await gate.wait()
            self.longest_burst = max(self.longest_burst, len(data))
            if gate is self._requests and self._cut_at and self._cut_at in data:
                self._breaks += 1
                return
            for start in range(0, len(data), self.piece):
                # asyncio disables Nagle's algorithm: each piece is a packet.
                writer.write(data[start : start + self.piece])
                await writer.drain()


@contextlib.contextmanager
def proxies(targets: DevNodes | Iterable[DevNode]) -> Iterator[list[Proxy]]:
    """Give one proxy to each server; a thread of this process runs all of them."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxies", daemon=True)
    thread.start()
    made: list[Proxy] = []
    try:
        for target in targets.nodes if isinstance(targets, DevNodes) else targets:
            made.append(Proxy(target, loop))  # noqa: PERF401  (those to close)
        yield made
    finally:
        for proxy in made:
            proxy.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# -- The scripted server -------------------------------------------------------------


class ScriptedServer:
    """A server that reads Redis commands and sends the bytes that a test returns.

    Args:
        answer: Returns the reply to a command on a connection. One call at a time.
    """

    def __init__(self, answer: Callable[[list[bytes], socket.socket], bytes]) -> None:
        self._answer = answer
        self.greeting = b""
        self._turn = threading.Lock()
        self._listener = socket.create_server((_HOST, 0))
        self.url = f"redis://{_HOST}:{self._listener.getsockname()[1]}/0"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def hang_up(self) -> None:
        """Close all connections."""
        while self._sockets:
            with contextlib.suppress(OSError):
                self._sockets.pop().shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """End the server and its threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(_SOON)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        reader = PythonReader()
        with contextlib.suppress(OSError), sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.greeting:
                sock.sendall(self.greeting)
            while True:
                data = sock.recv(1 << 16)
                if not data:
                    return
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    with self._turn:
                        reply = self._answer(command, sock)
                    sock.sendall(reply)
