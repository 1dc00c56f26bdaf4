"""Contenders: each library takes and releases a lock as its documentation shows.

Each has one client for all locks, if the library allows this. All use the same servers,
and the same redis-py and hiredis.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import select
import socket
from typing import TYPE_CHECKING, Any

import redis
from redis.lock import Lock

from benchmarks.runner import Contender
from celery_redlock.basics.resp import new_reader, pack
from celery_redlock.locks.lease import Holder, new_base, new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_redlock.devnodes import DevNodes
    from celery_redlock.locks.redlock import Redlock

TTL = 30  # seconds
_MS = 1000
_numbers = itertools.count()


def _name() -> str:
    return f"bench:{next(_numbers)}"


def ours(redlock: Redlock, count: int, name: str = "celery-redlock") -> Contender:
    """Take and release locks with this service."""

    def run(cycles: int) -> None:
        for _ in range(cycles):
            redlock.release(redlock.acquire(_name(), TTL))

    return Contender(name, len(redlock.labels), run, count)


def redis_py(client: redis.Redis, count: int) -> Contender:
    """Take and release the lock of redis-py: the least that one node can do."""

    def run(cycles: int) -> None:
        for _ in range(cycles):
            lock = Lock(client, _name(), timeout=TTL)
            lock.acquire(blocking=False)
            lock.release()

    return Contender("redis-py Lock", 1, run, count)


class RawSockets:
    """N sockets: send to all, and wait for the replies of a majority.

    No client in Python that asks N nodes can be much faster.
    """

    def __init__(self, ports: Iterable[int]) -> None:
        self._poll = select.epoll()
        self._of: dict[int, tuple[socket.socket, Any]] = {}
        self._owed: dict[int, int] = {}
        for port in ports:
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(0)
            self._of[sock.fileno()] = sock, new_reader()
            self._owed[sock.fileno()] = 0
            self._poll.register(sock.fileno(), select.EPOLLIN)
        self._quorum = len(self._of) // 2 + 1

    def ask(self, command: bytes) -> None:
        """Send one command to all, and return when a majority has answered."""
        for number, (sock, _) in self._of.items():
            sock.send(command)
            self._owed[number] += 1
        done = 0
        while done < self._quorum:
            for number, _ in self._poll.poll():
                sock, reader = self._of[number]
                reader.feed(sock.recv(65536))
                while reader.gets() is not False:
                    self._owed[number] -= 1
                    done += not self._owed[number]


def _raw(nodes: DevNodes, redlock: Redlock, count: int) -> list[Contender]:
    ports = [node.port for node in nodes.nodes]
    scripts, pings = RawSockets(ports), RawSockets(ports)
    info = Holder.here().info()

    def same_scripts(cycles: int) -> None:
        for _ in range(cycles):
            key, token = _name(), new_token(new_base())
            asked = redlock.acquire_request(key, ttl=TTL, token=token, holder_info=info)
            scripts.ask(asked.packed())
            scripts.ask(redlock.release_request(key, token).packed())

    def broadcasts(cycles: int) -> None:
        ping = pack(("PING",))
        for _ in range(2 * cycles):
            pings.ask(ping)

    count_of_nodes = len(nodes.nodes)
    return [
        Contender("raw sockets, same scripts", count_of_nodes, same_scripts, count),
        Contender("raw sockets, two PINGs", count_of_nodes, broadcasts, count),
    ]


def _python_redis_lock(url: str, count: int) -> Contender:
    import redis_lock  # noqa: PLC0415  (a peer that may not import)

    client = redis.Redis.from_url(url)

    def run(cycles: int) -> None:
        for _ in range(cycles):
            lock = redis_lock.Lock(client, _name(), expire=TTL)
            lock.acquire(blocking=False)
            lock.release()

    return Contender("python-redis-lock", 1, run, count)


def _redlock_py(nodes: DevNodes, count: int) -> Contender:
    import redlock  # noqa: PLC0415  (a peer that may not import)

    ports = [{"host": "127.0.0.1", "port": node.port} for node in nodes.nodes]
    service = redlock.Redlock(ports)

    def run(cycles: int) -> None:
        for _ in range(cycles):
            service.unlock(service.lock(_name(), TTL * _MS))

    return Contender("redlock-py", len(ports), run, count)


def _pottery(nodes: DevNodes, count: int) -> Contender:
    import pottery  # noqa: PLC0415  (a peer that may not import)

    clients = {redis.Redis.from_url(url) for url in nodes.urls}

    def run(cycles: int) -> None:
        for _ in range(cycles):
            lock = pottery.Redlock(
                key=_name(), masters=clients, auto_release_time=float(TTL)
            )
            lock.acquire(blocking=False)
            lock.release()

    return Contender("pottery", len(clients), run, max(1, count // 8))


def _aioredlock(nodes: DevNodes, count: int) -> Contender:
    import aioredlock  # noqa: PLC0415  (a peer that may not import)

    logging.getLogger("aioredlock").setLevel(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    service = aioredlock.Aioredlock([("127.0.0.1", node.port) for node in nodes.nodes])

    async def cycle(cycles: int) -> None:
        for _ in range(cycles):
            await service.unlock(await service.lock(_name(), lock_timeout=TTL))

    def run(cycles: int) -> None:
        loop.run_until_complete(cycle(cycles))

    return Contender("aioredlock", len(nodes.nodes), run, max(1, count // 4))


def _celery_once(url: str, count: int) -> Contender:
    from celery_once.backends import redis as backend  # noqa: PLC0415  (a peer)

    once = backend.Redis({"url": url})

    def run(cycles: int) -> None:
        for _ in range(cycles):
            key = _name()
            once.raise_or_lock(key, TTL)
            once.clear_lock(key)

    return Contender("celery-once", 1, run, count)


def _celery_singleton(url: str, count: int) -> Contender:
    from celery_singleton.backends.redis import RedisBackend  # noqa: PLC0415  (a peer)

    backend = RedisBackend(url)

    def run(cycles: int) -> None:
        for _ in range(cycles):
            key = _name()
            backend.lock(key, "task-id", TTL)
            backend.unlock(key)

    return Contender("celery-singleton", 1, run, count)


def _celery_heimdall(url: str, count: int) -> Contender:
    from types import SimpleNamespace  # noqa: PLC0415

    from celery_heimdall import task as heimdall  # noqa: PLC0415  (a peer)

    settings = SimpleNamespace(unique_lock_blocking=False, unique_lock_timeout=None)
    task: Any = SimpleNamespace(
        heimdall_redis=redis.Redis.from_url(url), heimdall_config=settings
    )

    def run(cycles: int) -> None:
        for _ in range(cycles):
            key = _name()
            heimdall.acquire_lock(task, key, TTL, task_id="task-id")
            heimdall.release_lock(task, key)

    return Contender("celery-heimdall", 1, run, count)


def locks(
    nodes: DevNodes, redlock: Redlock, count: int
) -> tuple[list[Contender], dict[str, str]]:
    """Return the contenders that run here, and the reasons of the others."""
    url = nodes.urls[0]
    peers: dict[str, Callable[[], Contender]] = {
        "python-redis-lock": lambda: _python_redis_lock(url, count),
        "redlock-py": lambda: _redlock_py(nodes, count),
        "pottery": lambda: _pottery(nodes, count),
        "aioredlock": lambda: _aioredlock(nodes, count),
        "celery-once": lambda: _celery_once(url, count),
        "celery-singleton": lambda: _celery_singleton(url, count),
        "celery-heimdall": lambda: _celery_heimdall(url, count),
    }
    found = [
        ours(redlock, count),
        redis_py(redis.Redis.from_url(url), count),
        *_raw(nodes, redlock, count),
    ]
    missing = {}
    for name, make in peers.items():
        contender = _tried(make)
        if isinstance(contender, str):
            missing[name] = contender
        else:
            found.append(contender)
    return found, missing


def _tried(make: Callable[[], Contender]) -> Contender | str:
    """Return a contender that has done one cycle, or the reason why it cannot."""
    try:
        contender = make()
        contender.run(1)
    except Exception as error:  # noqa: BLE001  (each peer fails in its own way)
        return f"{type(error).__name__}: {error}".splitlines()[0][:100]
    return contender
