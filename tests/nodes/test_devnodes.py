"""`DevNodes`: independent servers, set up as they were asked for, that vote at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pytest
import redis

from celery_redlock.core.redlock import Redlock
from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions
from celery_redlock.errors import ConfigurationError, RedlockError
from tests.nodes.support import plain_client

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.every_server
def test_nodes_are_independent_servers(redis_server: str) -> None:
    """Each node is a server of its own, a master, that answers under its URL."""
    with DevNodes(5, binary=redis_server, initialize=False) as servers:
        about = [node.command("INFO") for node in servers.nodes]

    assert len(set(servers.urls)) == 5
    assert len({info["run_id"] for info in about}) == 5
    assert {info["role"] for info in about} == {"master"}


@pytest.mark.every_server
def test_node_is_ready_when_start_returns(redis_server: str) -> None:
    """A client that connects right after the start is served."""
    with DevNodes(1, binary=redis_server, initialize=False) as servers:
        assert plain_client(servers.nodes[0]).ping()


def test_nodes_started_twice_are_the_same(redis_server: str) -> None:
    """A second start of running nodes changes nothing."""
    with DevNodes(2, binary=redis_server, initialize=False) as servers:
        before = [(node.pid, node.url) for node in servers.nodes]

        servers.start()

        assert [(node.pid, node.url) for node in servers.nodes] == before


def test_nodes_stop_and_start_again(redis_server: str) -> None:
    """Stopped nodes leave no process and no folder, and can be started anew."""
    servers = DevNodes(2, binary=redis_server, initialize=False)
    servers.start()
    processes = [psutil.Process(node.pid) for node in servers.nodes]
    folders = {Path(process.cwd()).parent for process in processes}

    servers.stop()
    servers.stop()

    assert not any(process.is_running() for process in processes)
    assert not any(folder.exists() for folder in folders)
    assert not any(node.is_running for node in servers.nodes)

    with servers:
        assert servers.nodes[0].command("PING")


def test_nodes_stop_when_paused(redis_server: str) -> None:
    """A stopped process does not keep its owner waiting."""
    servers = DevNodes(1, binary=redis_server, initialize=False)
    servers.start()
    process = psutil.Process(servers.nodes[0].pid)
    servers.nodes[0].pause()

    servers.stop()

    assert not process.is_running()


@pytest.mark.parametrize("count", [0, -1])
def test_nodes_need_a_count(count: int) -> None:
    """A count below one is refused at once, with an error that names it."""
    with pytest.raises(ConfigurationError, match=f"{count} nodes"):
        DevNodes(count)


# -- Options -----------------------------------------------------------------------


@pytest.mark.every_server
def test_node_listens_on_a_unix_socket(start_nodes: Callable[..., DevNodes]) -> None:
    """With `unix_socket` there is no port."""
    options = ServerOptions(unix_socket=True)

    node = start_nodes(1, options=options, initialize=False).nodes[0]

    assert urlsplit(node.url).scheme == "unix"
    assert node.port == 0
    assert plain_client(node).ping()
    assert node.command("CONFIG", "GET", "port") == ["port", "0"]


def stranger_to(node: DevNode) -> redis.Redis:
    """Make a client that knows the port of a node and nothing else."""
    options: dict[str, Any] = {"protocol": 2, "retry": None}
    return redis.Redis(port=node.port, **options)


@pytest.mark.every_server
def test_node_wants_its_password(start_nodes: Callable[..., DevNodes]) -> None:
    """The node needs its password; the URL has it, also with special characters."""
    options = ServerOptions(password="p@ss/w:rd%#")
    node = start_nodes(1, options=options, initialize=False).nodes[0]

    assert plain_client(node).ping()
    with pytest.raises(redis.AuthenticationError):
        stranger_to(node).ping()
    assert node.command("PING")


@pytest.mark.every_server
def test_node_limits_its_user(start_nodes: Callable[..., DevNodes]) -> None:
    """The URL's user may do what `acl` says; `command` may do everything."""
    options = ServerOptions(username="locker", password="secret", acl="~ours:* +get")
    node = start_nodes(1, options=options, initialize=False).nodes[0]

    assert plain_client(node).get("ours:name") is None
    with pytest.raises(redis.ResponseError, match="ermission"):
        plain_client(node).set("ours:name", "value")
    with pytest.raises(redis.ResponseError, match="ermission"):
        plain_client(node).get("theirs:name")
    assert node.command("SET", "theirs:name", "value")
    with pytest.raises(redis.AuthenticationError):
        stranger_to(node).ping()


def test_node_speaks_tls(
    start_nodes: Callable[..., DevNodes], certificate: tuple[Path, Path]
) -> None:
    """With a certificate the URL is rediss://, and plain text gets no answer."""
    files = str(certificate[0]), str(certificate[1])
    try:
        servers = start_nodes(
            1, options=ServerOptions(certificate=files), initialize=False
        )
    except RedlockError as error:
        if "tls" not in str(error):
            raise
        pytest.skip("this redis-server was built without TLS")
    node = servers.nodes[0]

    assert urlsplit(node.url).scheme == "rediss"
    assert plain_client(node).ping()
    assert node.command("PING")
    with pytest.raises(redis.ConnectionError):
        stranger_to(node).ping()


def test_node_takes_more_configuration(start_nodes: Callable[..., DevNodes]) -> None:
    """The entries of `config` are in the redis.conf of the node."""
    options = ServerOptions(config={"maxmemory": "10mb", "save": "60 1"})

    node = start_nodes(1, options=options, initialize=False).nodes[0]

    assert node.command("CONFIG", "GET", "maxmemory") == ["maxmemory", "10485760"]
    assert node.command("CONFIG", "GET", "save") == ["save", "60 1"]


# -- As a deployment ---------------------------------------------------------------


@pytest.mark.every_server
def test_nodes_vote_at_once(five_nodes: DevNodes, key: str) -> None:
    """Nodes that were just started need not wait for a max_ttl before they vote."""
    redlock = Redlock(five_nodes.urls)

    lease = redlock.acquire(key)

    assert lease.is_valid()
    redlock.release(lease)
    redlock.close()


def test_nodes_are_initialized_for_their_max_ttl(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A client with the same max_ttl is served, however short it is."""
    servers = start_nodes(3, max_ttl=2)
    redlock = Redlock(servers.urls, ttl=1, max_ttl=2)

    redlock.release(redlock.acquire(key))

    redlock.close()


@pytest.mark.usefixtures("redis_server")
def test_plugin_gives_three_nodes(redlock_nodes: DevNodes, key: str) -> None:
    """The fixture of the pytest plug-in is a deployment that grants locks."""
    redlock = Redlock(redlock_nodes.urls)

    redlock.release(redlock.acquire(key))

    assert len(redlock_nodes.urls) == 3
    redlock.close()
