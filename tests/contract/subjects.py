"""What the scripts are tried on: one node, its keys, and each script to be called."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from celery_redlock.core import scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.scripts import Script

TOKEN, OTHER = "base-a.try-1", "base-b.try-1"
FACTS = "task\nid\nhost\n1\n2.000"
CONFIG, CLOSED, NEW = "protocol 1, for tests", "closed", "protocol 1, other tests"
STRIPE = "7"
TTL = 20_000  # ms; no test takes so long
SHORT = 30  # ms, for what is to end
NO_KEY, FOR_EVER = -2, -1  # what PTTL says
WHOLE = 2**53  # above it a double cannot tell n from n + 1
TOLERANCE = 15_000_000  # µs
SOON = 10.0  # seconds


def value(number: int, token: str = TOKEN, facts: str = FACTS) -> bytes:
    """Return what a lock's value must be."""
    return f"{token}\n{number}\n{facts}".encode()


class Subject(ABC):
    """One node, its keys for one test, and the scripts with their arguments."""

    def __init__(self) -> None:
        self.prefix = secrets.token_hex(8)

    @property
    def lock(self) -> str:
        """The name of the lock's key."""
        return f"{self.prefix}:lock:a"

    @property
    def line(self) -> str:
        """The name of the key with those who wait for the lock."""
        return f"{self.prefix}:line:a"

    @property
    def fence(self) -> str:
        """The name of the key with the counters."""
        return f"{self.prefix}:fence"

    @property
    def meta(self) -> str:
        """The name of the key with the marker."""
        return f"{self.prefix}:meta"

    @property
    def quarantine(self) -> str:
        """The name of the key that keeps the node from voting."""
        return f"{self.prefix}:quarantine"

    @property
    def life(self) -> bytes:
        """The name of the present life of the node, as its marker says."""
        return self.hgetall(self.meta)[b"life"]

    @property
    @abstractmethod
    def run_id(self) -> bytes:
        """The name that the server process gives itself."""

    @property
    @abstractmethod
    def now_us(self) -> int:
        """The node's TIME."""

    @abstractmethod
    def run(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply."""

    @abstractmethod
    def restart(self, *, keep_memory: bool) -> None:
        """Become another process."""

    @abstractmethod
    def flush(self) -> None:
        """Forget everything."""

    @abstractmethod
    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until this is so."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Read a string."""

    @abstractmethod
    def hgetall(self, key: str) -> dict[bytes, bytes]:
        """Read a hash."""

    @abstractmethod
    def pttl(self, key: str) -> int:
        """Read a ttl: -1 for ever, -2 for no key."""

    @abstractmethod
    def in_line(self) -> list[bytes]:
        """Read who waits, in their order."""

    @abstractmethod
    def set(self, key: str, value: str | bytes, px: int | None = None) -> None:
        """Write a string."""

    @abstractmethod
    def hset(self, key: str, field: str, value: Any) -> None:
        """Write a field of a hash."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Forget a key."""

    def dump(self) -> dict[str, bytes | dict[bytes, bytes] | None]:
        """Read all keys, whatever type they are of."""
        return {
            "lock": self.read(self.lock),
            "fence": self.read(self.fence),
            "meta": self.read(self.meta),
            "quarantine": self.read(self.quarantine),
        }

    @abstractmethod
    def read(self, key: str) -> bytes | dict[bytes, bytes] | None:
        """Read a key of any type."""

    # -- what others do to its keys --------------------------------------------

    def forget(self, name: str) -> None:
        """Delete one of the keys."""
        self.delete(getattr(self, name))

    def put(self, name: str, value: str, px: int | None) -> None:
        """Put a string there, whatever there is."""
        self.set(getattr(self, name), value, px)

    def retype(self, name: str) -> None:
        """Put something of another type there."""
        self.forget(name)
        if name in ("lock", "quarantine"):
            self.hset(getattr(self, name), "field", "theirs")
        else:
            self.put(name, "theirs", None)

    def count(self, field: str, value: Any) -> None:
        """Set a fence counter, where there can be one."""
        if isinstance(self.read(self.fence), dict | None):
            self.hset(self.fence, field, value)

    def seem_restarted(self) -> None:
        """Let the marker be that of an earlier life, where there can be one."""
        if isinstance(self.read(self.meta), dict | None):
            self.hset(self.meta, "run_id", "of an earlier life")

    # -- the scripts -----------------------------------------------------------

    def acquire(  # noqa: PLR0913  (each has the value that most tests want)
        self,
        token: str = TOKEN,
        facts: str = FACTS,
        ttl_ms: int = TTL,
        *,
        stripe: str = STRIPE,
        hint_us: int = 0,
        tolerance_us: int = TOLERANCE,
        config: str = "",
        quarantine_ms: int = 61_000,
    ) -> Any:
        """Run ACQUIRE; without the restart guard unless there is a config."""
        keys = [self.lock, self.fence, self.meta, self.quarantine]
        args = [token, facts, ttl_ms, stripe, hint_us, tolerance_us, config]
        return self.run(scripts.ACQUIRE, keys, [*args, quarantine_ms])

    def extend(self, token: str = TOKEN, ttl_ms: int = TTL, *, config: str = "") -> Any:
        """Run EXTEND."""
        keys = [self.lock, self.fence, self.meta]
        return self.run(scripts.EXTEND, keys, [config, token, ttl_ms])

    def restore(
        self,
        token: str = TOKEN,
        ttl_ms: int = TTL,
        *,
        fence: int | str = 100,
        config: str = "",
    ) -> Any:
        """Run RESTORE."""
        keys = [self.lock, self.fence, self.meta]
        args = [config, token, FACTS, ttl_ms, STRIPE, fence]
        return self.run(scripts.RESTORE, keys, args)

    def raise_fence(self, token: str = TOKEN, *, fence: int | str = 100) -> Any:
        """Run RAISE_FENCE."""
        args = [token, FACTS, STRIPE, fence]
        return self.run(scripts.RAISE_FENCE, [self.lock, self.fence], args)

    def release(self, token: str = TOKEN, *, keep_ms: int = 0) -> Any:
        """Run RELEASE."""
        return self.run(scripts.RELEASE, [self.lock, self.line], [token, keep_ms])

    def line_up(self, waiter: str = "w/1", rank: int = 1, ttl_ms: int = TTL) -> Any:
        """Run LINE_UP."""
        return self.run(scripts.LINE_UP, [self.lock, self.line], [waiter, rank, ttl_ms])

    def step_out(self, waiter: str = "w/1", after: str = "0") -> Any:
        """Run STEP_OUT."""
        return self.run(scripts.STEP_OUT, [self.lock, self.line], [waiter, after])

    def inspect(self) -> Any:
        """Run INSPECT."""
        return self.run(scripts.INSPECT, [self.lock], [])

    def counters(self, config: str = CONFIG) -> Any:
        """Run COUNTERS."""
        keys = [self.fence, self.meta, self.quarantine]
        return self.run(scripts.COUNTERS, keys, [config])

    def sync(self, run_id: bytes, *pairs: Any, floor: int = 0) -> Any:
        """Run SYNC."""
        keys = [self.fence, self.meta, self.quarantine]
        return self.run(scripts.SYNC, keys, [run_id, floor, *pairs])

    def initialize(self, config: str = CONFIG) -> Any:
        """Run INITIALIZE."""
        keys = [self.fence, self.meta, self.quarantine]
        return self.run(scripts.INITIALIZE, keys, [config])

    def close(self, quarantine_ms: int = 61_000, *, new: str = NEW) -> Any:
        """Run CLOSE, on the way from the usual config to another."""
        keys = [self.fence, self.meta, self.quarantine]
        return self.run(scripts.CLOSE, keys, [CONFIG, CLOSED, new, quarantine_ms])

    def open(self, *pairs: Any, new: str = NEW) -> Any:
        """Run OPEN, on the way from the usual config to another."""
        keys = [self.fence, self.meta, self.quarantine]
        return self.run(scripts.OPEN, keys, [CONFIG, CLOSED, new, *pairs])

    def counter(self, field: str = STRIPE) -> bytes | None:
        """Read one fence counter."""
        return self.hgetall(self.fence).get(field.encode())
