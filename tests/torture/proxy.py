"""Lines to the nodes that fail as networks do: silently, late, or one way only.

``python -m tests.torture.proxy CONTROL LISTEN:TARGET ...`` with ports of loopback.
Connect to the control port and send ``NUMBER MODE``; the answer is ``ok``.

========  ====================================================================
mode      what happens to bytes
========  ====================================================================
open      they pass
cut       nothing passes, and no connection comes about; nobody is told
deaf      requests pass, answers do not: the node does what nobody hears of
slow      each chunk is late by up to 0.4 s, in order
reset     all connections are closed; then as ``open``
========  ====================================================================

What was held back passes when the line is mended, as TCP would send it again: a
request may reach a node long after the one who sent it gave up.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys

HOST = "127.0.0.1"
READY = "the lines are open"
_LATEST = 0.4  # seconds


class Line:
    """The way to one node."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.mode = "open"
        self._mended = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()

    async def become(self, mode: str) -> None:
        """Change the mode."""
        async with self._mended:
            self.mode = "open" if mode == "reset" else mode
            self._mended.notify_all()
        if mode == "reset":
            for writer in self._writers:
                writer.transport.abort()

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection until an end closes it."""
        self._writers.add(writer)
        with contextlib.suppress(OSError):
            await self._passage("requests")
            there = await asyncio.open_connection(HOST, self.target)
            self._writers.add(there[1])
            try:
                await asyncio.gather(
                    self._pump(reader, there[1], "requests"),
                    self._pump(there[0], writer, "answers"),
                )
            finally:
                self._writers.discard(there[1])
                there[1].close()
        self._writers.discard(writer)
        writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str
    ) -> None:
        try:
            while data := await reader.read(65536):
                await self._passage(what)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def _passage(self, what: str) -> None:
        if self.mode == "slow":
            await asyncio.sleep(random.uniform(0, _LATEST))  # noqa: S311  (no secret)
        closed = {"requests": ("cut",), "answers": ("cut", "deaf")}[what]
        async with self._mended:
            await self._mended.wait_for(lambda: self.mode not in closed)


async def main(control: int, ways: list[tuple[int, int]]) -> None:
    """Serve until killed."""
    lines = [Line(target) for _, target in ways]
    for line, (port, _) in zip(lines, ways, strict=True):
        await asyncio.start_server(line.carry, HOST, port)

    async def obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while words := (await reader.readline()).decode().split():
            await lines[int(words[0])].become(words[1])
            writer.write(b"ok\n")
        writer.close()

    server = await asyncio.start_server(obey, HOST, control)
    print(READY, flush=True)  # noqa: T201  (whoever started it waits for this)
    await server.serve_forever()


if __name__ == "__main__":
    pairs = [text.split(":") for text in sys.argv[2:]]
    asyncio.run(main(int(sys.argv[1]), [(int(a), int(b)) for a, b in pairs]))
