"""Delays every byte, each way: servers look as if they were on a network.

``python -m benchmarks.delay SECONDS FROM:TO ...`` listens on the first port of each
pair on loopback and passes on to the second one, until it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from celery_redlock.basics.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_READ_SIZE = 1 << 16
_POLL_EVERY, _SOON = 0.02, 10.0  # seconds


@contextlib.contextmanager
def delayed(ports: Sequence[int], seconds: float) -> Iterator[list[int]]:
    """Give ports that lead to these with a delay each way; the same for no delay."""
    if not seconds:
        yield list(ports)
        return
    fronts = [_free_port() for _ in ports]
    pairs = [f"{front}:{port}" for front, port in zip(fronts, ports, strict=True)]
    process = subprocess.Popen(  # noqa: S603  (this program)
        [sys.executable, "-m", "benchmarks.delay", str(seconds), *pairs]
    )
    try:
        for front in fronts:
            _await_listener(front)
        yield fronts
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _await_listener(port: int) -> None:
    until = SYSTEM_CLOCK.monotonic() + _SOON
    while not _listens(port) and SYSTEM_CLOCK.monotonic() < until:
        SYSTEM_CLOCK.sleep(_POLL_EVERY)


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


async def _pass_on(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float
) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await source.read(_READ_SIZE):
            loop.call_later(seconds, target.write, data)
    loop.call_later(seconds, target.close)


async def _serve(seconds: float, pairs: list[str]) -> None:
    for pair in pairs:
        front, _, port = pair.partition(":")

        async def connect(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            port: str = port,
        ) -> None:
            to_server = await asyncio.open_connection("127.0.0.1", int(port))
            await asyncio.gather(
                _pass_on(reader, to_server[1], seconds),
                _pass_on(to_server[0], writer, seconds),
            )

        await asyncio.start_server(connect, "127.0.0.1", int(front))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), sys.argv[2:]))
