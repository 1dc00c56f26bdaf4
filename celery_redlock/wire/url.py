"""The address of a node: a URL that may hold a password, and a name that does not."""

from __future__ import annotations

import errno
import functools
import inspect
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.secret import SecretUrl, hidden, mask_url
from celery_redlock.basics.spelling import did_you_mean
from celery_redlock.basics.text import is_encodable, printable
from celery_redlock.errors import ConfigurationError
from celery_redlock.stores.connection import (
    as_url,
    is_store,
    store_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.connection import AbstractConnection


_SCHEMES = ("redis://", "rediss://", "unix://")
_DEFAULT_PORT = 6379
_LONGEST_GREETING = 1 << 20  # bytes
_GREETING_TAKES = 10  # times as long as one part of it may take
_NODE_TIMEOUT, _STORE_TIMEOUT = 0.05, 0.5  # seconds
# From Python 3.13 on, a guess of what was meant may follow.
_UNKNOWN_OPTION = r"unexpected keyword argument '(.*?)'(?:\. Did you mean .*)?$"
_QUOTE = (
    "a port must be a number, and the characters / ? # @ : % of a password are "
    "written %2F %3F %23 %40 %3A %25"
)


class _Greeter:
    """A socket that is read until the server has sent too much, or for too long."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._left = _LONGEST_GREETING
        self._until = SYSTEM_CLOCK.monotonic() + seconds

    def recv(self, size: int) -> bytes:
        """Receive bytes, as a socket does."""
        if SYSTEM_CLOCK.monotonic() > self._until:
            raise TimeoutError
        data = self._sock.recv(size)
        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.EMSGSIZE, "sent over a megabyte and no greeting")
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@functools.cache
def _greeting_parser() -> type:
    """Return the parser of redis-py that reads the greeting of a server."""
    from redis._parsers import _RESP2Parser  # noqa: PLC0415

    class Parser(_RESP2Parser):
        def on_connect(self, connection: Any) -> None:
            super().on_connect(connection)  # type: ignore[no-untyped-call]
            buffer: Any = self._buffer
            seconds = _GREETING_TAKES * connection.socket_timeout
            buffer._sock = _Greeter(connection._sock, seconds)  # noqa: SLF001

    return Parser


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """One node of the configuration.

    Attributes:
        name: ``host:port/db``, ``socket-path/db`` or a given name. Two clients agree
            on a deployment when they agree on these names, so a name holds no scheme
            and no credentials.
        url: How to reach it. May hold a password.
    """

    name: str
    url: SecretUrl = field(repr=False)

    def connection(self, timeout: float) -> AbstractConnection:
        """Build redis-py's connection to the node; it is not opened.

        RESP2 is pinned, because RESP3 may push frames that are no replies. redis-py's
        retries are off, because by default they cost seconds for a dead node. The
        parser in Python reads the greeting, and no more than a megabyte of it: hiredis
        makes room for an array of any length at once, and another service at the port
        may send without an end, or a byte now and then. A key without the password that
        it needs is an error: OpenSSL would ask the terminal for it, and wait.
        """
        # The import takes 60 ms. The package comes first: a thread that began with a
        # part of it, and another with the whole, would wait for each other.
        import redis  # noqa: F401, PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.connection import Connection, parse_url  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415

        options: dict[str, Any] = {**parse_url(self.url.reveal())}
        kind = options.pop("connection_class", Connection)
        if kind.__name__ != "UnixDomainSocketConnection":
            options.setdefault("socket_keepalive", True)
        options.setdefault("socket_connect_timeout", timeout)
        options.setdefault("socket_timeout", timeout)
        options |= {"protocol": 2, "retry": Retry(NoBackoff(), 0), **_introduction()}
        options["decode_responses"] = False  # scripts reply with bytes of any kind
        options["parser_class"] = _greeting_parser()
        if self.url.scheme == "rediss":
            options.setdefault("ssl_password", _no_password)
            # Before 6.0, redis-py takes a certificate of any name by default.
            is_checked = options.get("ssl_cert_reqs") != "none"
            options.setdefault("ssl_check_hostname", is_checked)
        connection: AbstractConnection = kind(**options)
        # redis-py 5.0.3 forgets it for unix sockets.
        connection.socket_timeout = options["socket_timeout"]
        return connection

    @property
    def server(self) -> str:
        """Where the server listens: ``host:port`` or a socket's path, no database."""
        name = _name_of(self.url.reveal())
        return name if self.is_store else name.rpartition("/")[0]

    @property
    def hosts(self) -> list[str]:
        """The hosts of the server, or of all members of a cluster; [] for a socket."""
        if self.is_store:
            return store_of(self.url).hosts_of(self.url.reveal())
        parts = urlsplit(self.url.reveal())
        return [] if parts.scheme == "unix" else [parts.hostname or ""]

    @property
    def members(self) -> list[NodeAddress]:
        """Each member of a cluster that is a store; [] where there is one server."""
        if not self.is_store:
            return []
        members = store_of(self.url).members_of(self.url.reveal())
        return [NodeAddress(name, SecretUrl(url)) for name, url in members.items()]

    @property
    def is_store(self) -> bool:
        """Whether it is a store, which decides alone, and not a Redis node."""
        return is_store(self.url)

    def __str__(self) -> str:
        return self.name


def _no_password() -> str:
    """Refuse a key that needs a password."""
    raise OSError("the key needs a password")


def _instead_of(option: str, url: SecretUrl) -> str:
    """Return a remedy for an option that redis-py does not take from this URL."""
    from redis import connection  # noqa: PLC0415  (see `NodeAddress.connection`)

    if option.startswith("ssl") and url.scheme != "rediss":
        return "Write rediss:// for TLS."
    kinds = {"rediss": "SSLConnection", "unix": "UnixDomainSocketConnection"}
    kind = getattr(connection, kinds.get(url.scheme, "Connection"))
    takes = {n for one in kind.__mro__ for n in inspect.signature(one).parameters}
    read = {"db", "client_name", *connection.URL_QUERY_ARGUMENT_PARSERS}
    return did_you_mean(option, {n for n in takes if n in read or n[:4] == "ssl_"})


@functools.cache
def _introduction() -> dict[str, Any]:
    """Return the options by which a connection tells the server its library.

    From 7.1 on redis-py reads the metadata of its installation for each connection.
    """
    try:
        from redis.driver_info import DriverInfo  # noqa: PLC0415
    except ImportError:
        return {}
    return {"driver_info": DriverInfo()}


def parse_node(spec: str | Mapping[str, str] | NodeAddress) -> NodeAddress:
    """Read one entry of ``redlock_nodes``.

    Args:
        spec: ``"redis://host:port/db"``, ``"rediss://…"`` (TLS) or
            ``"unix:///path/to.sock?db=0"``, each with ``user:password@`` if needed;
            or ``{"url": …, "name": …}`` to give the node a name. A store that decides
            alone is ``"postgresql://user@host/database"``, the same in libpq's
            ``"host=… dbname=…"``, ``"django://default"`` (a connection of the project),
            ``"etcd://a:2379,b:2379"`` (``etcds://`` for TLS), or
            ``"zookeeper://a:2181,b:2181/chroot"``.

    Raises:
        ConfigurationError: It cannot be read. The message masks the password.
    """
    if isinstance(spec, NodeAddress):
        return spec
    spec = hides = hidden(spec)
    try:
        return _read(hides)
    except ConfigurationError as error:
        refusal = str(error)
    # Raised here, so that no frame of it has a variable with the password.
    raise ConfigurationError(refusal)


def _read(spec: Any) -> NodeAddress:
    name: Any = ""
    if isinstance(spec, Mapping):
        if not {"url"} <= set(spec) <= {"url", "name"}:
            raise ConfigurationError(
                f"A node has the entries {', '.join(sorted(spec)) or 'nothing'}; "
                'write {"url": "redis://host:6379/0", "name": "a name"}.'
            )
        spec, name = spec["url"], spec.get("name", "")
        name = name.reveal() if isinstance(name, SecretUrl) else name
    text = (spec.reveal() if isinstance(spec, SecretUrl) else str(spec)).strip()
    shown = mask_url(text)
    _refuse_unencodable(text)
    try:
        text = as_url(text)
    except ValueError as error:
        raise ConfigurationError(f"The node {shown} cannot be used: {error}.") from None
    url = SecretUrl(text)
    if not text.startswith(_SCHEMES) and not is_store(url):
        raise ConfigurationError(
            f"The node {url} is not a Redis URL; write "
            "redis://host:6379/0, rediss://… for TLS or unix:///path/to.sock. A store "
            "in place of Redis nodes is postgresql://user@host/database, "
            "django://default, etcd://host:2379 or zookeeper://host:2181."
        )
    _refuse_unquoted(text)
    if not isinstance(name, str) or re.search(r"[\s,]", name):
        raise ConfigurationError(
            f"The name of the node {url} must be text without spaces and commas."
        )
    address = NodeAddress(name or _name_of(text), url)
    _refuse_unstorable(address)
    if address.is_store:
        return address
    from redis.exceptions import RedisError  # noqa: PLC0415  (see `connection`)

    try:
        address.connection(timeout=1.0)
    except RedisError as error:  # what follows the colon is a value
        reason = str(error).partition(":")[0]
        raise ConfigurationError(
            f"The node URL {url} cannot be used: {reason}."
        ) from None
    except (TypeError, ValueError) as error:
        reason = f"{_QUOTE}."
        if unknown := re.search(_UNKNOWN_OPTION, str(error)):
            option = unknown[1]
            reason = f"there is no option {option!r}. {_instead_of(option, url)}"
        raise ConfigurationError(
            f"The node URL {url} cannot be used: {reason}"
        ) from None
    return address


def parse_nodes(
    nodes: Sequence[str | Mapping[str, str] | NodeAddress],
) -> tuple[NodeAddress, ...]:
    """Read all of ``redlock_nodes``, at least one and each server once.

    Raises:
        ConfigurationError: There are none, one cannot be read, or one is listed
            twice.
    """
    nodes = hidden(nodes)
    if isinstance(nodes, (SecretUrl, bytes, Mapping)) or not nodes:
        raise ConfigurationError(
            "No nodes: Redlock needs a list of the URLs of its Redis masters, such as "
            '["redis://a:6379/0", "redis://b:6379/0", "redis://c:6379/0"].'
        )
    addresses = tuple(parse_node(node) for node in nodes)
    names = [address.name for address in addresses]
    stores = [address.name for address in addresses if address.is_store]
    if stores and len(names) > 1:
        raise ConfigurationError(
            f"The store {stores[0]} is one of {len(names)} nodes. A store decides "
            "alone: list it alone, or list Redis nodes only."
        )
    servers: dict[str, str] = {}
    for address in addresses:
        same_server = servers.setdefault(address.server, address.name)
        if (times := names.count(address.name)) > 1:
            fact = f"The node {address.name} is listed {times} times"
        elif same_server != address.name:
            fact = f"The nodes {same_server} and {address.name} are one server"
        else:
            continue
        raise ConfigurationError(
            f"{fact}. List each server once: a majority must be of independent servers."
        )
    return addresses


def usual_node_timeout(addresses: Sequence[NodeAddress]) -> float:
    """Return the default of ``redlock_node_timeout``: a store waits for its disk."""
    return _STORE_TIMEOUT if any(one.is_store for one in addresses) else _NODE_TIMEOUT


def _refuse_unencodable(url: str) -> None:
    """Refuse a URL that cannot be sent: drivers show the text in their errors.

    Raises:
        ConfigurationError: UTF-8 cannot carry it.
    """
    if not is_encodable(url):
        raise ConfigurationError(
            f"The node {printable(mask_url(url))} cannot be used: a character of it "
            "has no UTF-8, as in a variable of the environment with another encoding."
        )


def _refuse_unstorable(address: NodeAddress) -> None:
    """Refuse a name that the nodes cannot tell from the names beside it.

    Raises:
        ConfigurationError: It has what separates names, or another line.
    """
    if ", " in address.name or not address.name.isprintable():
        raise ConfigurationError(
            f"The node URL {address.url} makes a name with a comma and a space, or "
            "with what cannot be printed. Give the node a name: "
            '{"url": ..., "name": "redis-a"}.'
        )


def _refuse_unquoted(url: str) -> None:
    """Refuse a URL whose password may hold a character that ends it.

    The rest of the password would be taken for a part of the host, which is in the name
    of the node.

    Raises:
        ConfigurationError: There is such a character.
    """
    place, _, options = url.partition("://")[2].partition("?")
    login, _, _ = place.rpartition("@")
    if is_store(url):
        # libpq takes user and password as options, too.
        is_unclear = "@" in options and not url.startswith("postgres")
        is_unclear = is_unclear or "#" in url or bool(set("@/") & set(login))
    else:
        is_unclear = bool(set("/#") & set(login))
    if is_unclear:
        raise ConfigurationError(
            f"The node URL {mask_url(url)} is malformed: {_QUOTE}."
        )


def _name_of(url: str) -> str:
    if is_store(url):
        try:
            return store_of(url).name_of(url)
        except ValueError as error:
            raise ConfigurationError(
                f"The node URL {mask_url(url)} cannot be used: {error}."
            ) from None
    import redis  # noqa: F401, PLC0415  (60 ms; see `NodeAddress.connection`)
    from redis.connection import parse_url  # noqa: PLC0415

    try:
        parts = parse_url(url)
    except ValueError:  # its text may hold a part of the password
        raise ConfigurationError(
            f"The node URL {mask_url(url)} is malformed: {_QUOTE}."
        ) from None
    path = re.sub(r"^\w+://[^/?#]*", "", url).partition("?")[0].strip("/")
    if url.startswith("unix://"):
        if not hasattr(socket, "AF_UNIX"):
            raise ConfigurationError(
                f"The node URL {mask_url(url)} names a unix socket, which Python does "
                "not have on this system; write redis://host:6379/0."
            )
        if not parts.get("path"):
            raise ConfigurationError(
                f"The node URL {mask_url(url)} names no socket; write "
                "unix:///path/to.sock."
            )
        return f"{parts['path']}/{parts.get('db', 0)}"
    if not parts.get("host"):
        raise ConfigurationError(
            f"The node URL {mask_url(url)} names no host; write redis://host:6379/0."
        )
    try:
        parts["host"].encode("idna")  # as Python does when it looks the name up
    except UnicodeError:
        raise ConfigurationError(
            f"The node URL {mask_url(url)} names a host that cannot be one: a part of "
            "it between dots is empty, or longer than 63 characters."
        ) from None
    if path and not path.isdecimal():
        # It may be the rest of a password after which no host follows.
        shown = re.sub(r"(://[^/?#]*).*", r"\1/***", mask_url(url), flags=re.DOTALL)
        raise ConfigurationError(
            f"The node URL {shown} has a text where the number of the database "
            "belongs; write redis://host:6379/0."
        )
    return f"{parts['host']}:{parts.get('port', _DEFAULT_PORT)}/{parts.get('db', 0)}"
