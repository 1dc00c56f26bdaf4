"""A store over TCP: registers and lists that check a fence, or do not. A process.

Each request waits for a random time before it is applied, so requests of several
connections overtake each other. A request is applied also if its connection has died.
On SIGTERM the store writes all that it has to ``store.json``, with the fences of all
accepted writes in their order.

Requests and answers are lines of JSON: ``[operation, name, fence, value]`` and
``[is_accepted, fence, value]``. A fence of None is not checked. A read with a fence
raises the fence of the object, so that no earlier holder can write what it read before.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

PORT = 7000
READY = "store is ready"
FILE = "store.json"
_SHORT, _LONG, _LONG_SHARE = 0.02, 0.5, 0.05  # seconds of delay, and how often long


class Connection:
    """The store, as a client sees it. Not thread-safe.

    Args:
        address: The address of the store.
        seconds: How long an answer may take.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self._where, self._seconds = (address, PORT), seconds
        self._socket: socket.socket | None = None

    def ask(
        self, operation: str, name: str, fence: int | None = None, value: Any = None
    ) -> tuple[bool, int, Any]:
        """Send a request and return its answer: is it accepted, fence and value.

        Raises:
            OSError: There is no answer. The request may be applied later.
        """
        line = json.dumps([operation, name, fence, value]) + "\n"
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._where, self._seconds)
            self._socket.sendall(line.encode())
            answer = b""
            while not answer.endswith(b"\n"):
                part = self._socket.recv(65536)
                if not part:
                    raise ConnectionResetError
                answer += part
        except OSError:
            self.close()
            raise
        is_accepted, fence_there, found = json.loads(answer)
        return is_accepted, fence_there, found

    def close(self) -> None:
        """Close the connection; the next request makes another one."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class _Store:
    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._objects: dict[str, tuple[int, Any]] = {}
        self._accepted: list[tuple[str, int]] = []

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of one connection."""
        try:
            while line := await reader.readline():
                is_long = self._random.random() < _LONG_SHARE
                most = _LONG if is_long else _SHORT
                await asyncio.sleep(self._random.uniform(0, most))
                answer = self._apply(*json.loads(line))
                writer.write((json.dumps(answer) + "\n").encode())
        except OSError:
            pass  # the client will connect again
        finally:
            writer.close()

    def _apply(
        self, operation: str, name: str, fence: int | None, value: Any
    ) -> tuple[bool, int, Any]:
        last, found = self._objects.get(name, (0, None))
        if fence is not None and fence < last:
            return False, last, None
        after = last if fence is None else fence
        if operation == "write":
            found = value
            if fence is not None:
                self._accepted.append((name, fence))
        self._objects[name] = after, found
        return True, after, found

    def save(self) -> None:
        """Write all objects, and the fences of the accepted writes."""
        content = {"objects": self._objects, "accepted": self._accepted}
        (self._folder / FILE).write_text(json.dumps(content), "utf-8")


async def _main(address: str, folder: Path, seed: int) -> None:
    store, end = _Store(folder, seed), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    server = await asyncio.start_server(store.serve, address, PORT)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    await end.wait()
    server.close()
    store.save()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
