"""A connection to a store as the rest of the package uses it, and the list of stores.

`wire.store_connection` carries out on it what nodes, listeners and operators ask.
"""

from __future__ import annotations

import re
import selectors
from collections.abc import Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.selector import new_selector
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_redlock.basics.secret import SecretUrl

# Scheme -> module and class. The name of the extra is that of the module.
STORES = {
    "postgresql": "celery_redlock.stores.postgresql:PostgreSQL",
    "postgres": "celery_redlock.stores.postgresql:PostgreSQL",
    "etcd": "celery_redlock.stores.etcd:Etcd",
    "etcds": "celery_redlock.stores.etcd:Etcd",
    "zookeeper": "celery_redlock.stores.zookeeper:ZooKeeper",
}

# "django://default", and "host=db dbname=app", both of PostgreSQL alone.
_OTHER_NOTATION = re.compile(r"django://|\s*\w+\s*=")

Command: TypeAlias = list[bytes]
"""A command of Redis: its name, and its words."""

T = TypeVar("T")
Waits: TypeAlias = Generator[int, None, T]
"""What a store does without blocking. Where it must wait it yields for which events of
its socket."""

# Ends the reason of a `StoreError` where our user lacks a permission.
GRANT = f"grant what `{COMMAND} doctor --acl` prints"

# The same of a server that does not know our user, or its password.
REJECTED = "rejected the credentials; correct its user and password in redlock_nodes"

# The reasons of a server that is late at the start of a connection.
IS_BUSY = (
    "correct the port in redlock_nodes if another server listens there, else see "
    "whether its process is stopped, is busy or swaps"
)
SILENT = f"accepts connections, but did not answer in time; {IS_BUSY}"
NOT_ACCEPTED = "did not accept a connection in time"

# The same where what our keys need is missing: it is new, or was dropped.
MAKE = f"run `{COMMAND} init`"
DROPPED = (
    "If it was there before, running tasks may hold locks that are forgotten: answer "
    "no to the question of init, and it votes after one redlock_max_ttl"
)


class StoreError(Exception):
    """The store cannot be used. The text reads on after the node's name.

    Where the remedy is another one than to start the server, it follows a semicolon.

    Attributes:
        may_be_done: Whether what was asked for may be done nevertheless.
    """

    may_be_done = True


class Store(Protocol):
    """One connection to a store. Used by one thread, but for ``interrupt``."""

    grants: str
    """How to give ``{user}`` the permissions that it needs, for operators."""

    @classmethod
    def name_of(cls, url: str) -> str:
        """Return the name of the store at this URL, without credentials.

        Raises:
            ValueError: The URL cannot be used. The text says why, without it.
        """

    @classmethod
    def hosts_of(cls, url: str) -> list[str]:
        """Return the hosts of all its servers; none for a unix socket."""

    @staticmethod
    def emptied(prefix: str) -> str:
        """Return how to delete all keys of a deployment, for operators."""

    @classmethod
    def members_of(cls, url: str) -> dict[str, str]:
        """Return the URL of each server alone, by its name; none if there is one."""

    @classmethod
    def prepare(cls, url: str, timeout: float) -> None:
        """Make what the store needs for our keys, unless it is there.

        Raises:
            StoreError: The store cannot be used.
        """

    def __init__(self, url: str, timeout: float) -> None:
        """Connect.

        Raises:
            StoreError: The store cannot be used.
        """

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Carry commands out in one transaction, and return the replies.

        Raises:
            StoreError: The connection is lost.
        """

    def listen(self, channel: bytes, until_closed: Any) -> Iterator[bytes]:
        """Yield the messages on a channel, until the socket can be read.

        Yields ``b""`` first, as soon as it listens.

        Raises:
            StoreError: The connection is lost.
        """

    def interrupt(self) -> None:
        """End the wait of another thread. May be called twice."""

    def close(self) -> None:
        """Close the connection."""


class DirectStore(Store, Protocol):
    """A store that need not block, so that it needs no thread."""

    def running(self, commands: Sequence[Command]) -> Waits[list[Any]]:
        """Do what ``run`` does, and yield where it waits for the server."""

    def fileno(self) -> int:
        """Return the number of the socket that leads to the server."""

    def check(self) -> None:
        """Read notices of the server between requests.

        Raises:
            StoreError: It has closed the connection.
        """


def as_url(spec: str) -> str:
    """Return the URL of a store that is written in another notation; others as given.

    Raises:
        ConfigurationError: Its driver is not installed.
        ValueError: It cannot be read, or leads nowhere. The text says why, without it.
    """
    if not _OTHER_NOTATION.match(spec):
        return spec
    store_of("postgresql://")  # or its driver is not installed
    from celery_redlock.stores.postgresql_url import url_of  # noqa: PLC0415

    return url_of(spec)


def readable(
    *files: Any, timeout: float | None = None, events: int = selectors.EVENT_READ
) -> set[Any]:
    """Return the sockets that are readable, after a wait with a time limit.

    Not by `select.select`, which knows no file of a number above 1,023.

    Args:
        files: The sockets.
        timeout: Seconds; None for a wait without an end.
        events: What to wait for instead.
    """
    with new_selector() as selector:
        for file in files:
            selector.register(file, events)
        return {key.fileobj for key, _ in selector.select(timeout)}


def is_store(url: SecretUrl | str) -> bool:
    """Tell whether a URL is that of a store, and not of a Redis node."""
    return str(url).partition("://")[0] in STORES


def store_of(url: SecretUrl | str) -> type[Store]:
    """Return the class of the store at this URL.

    Raises:
        ConfigurationError: Its driver is not installed.
    """
    scheme = str(url).partition("://")[0]
    module, _, name = STORES[scheme].partition(":")
    try:
        found: type[Store] = getattr(import_module(module), name)
    except ImportError as error:
        extra = module.rpartition(".")[2]
        raise ConfigurationError(
            f"A node at {scheme}:// needs a package that cannot be "
            f"imported ({error}). Install it: pip install 'celery-redlock[{extra}]'"
        ) from error
    return found
