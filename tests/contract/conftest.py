"""The nodes that must reply alike: one in memory, and servers of each version."""

from __future__ import annotations

import subprocess
from functools import cache
from typing import TYPE_CHECKING

import pytest

from celery_redlock.devnodes import DevNode, redis_servers
from tests.contract.listener import Listener
from tests.contract.subjects import MemorySubject, ServerSubject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.subjects import Subject

MEMORY = "memory"


@cache
def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in redis_servers():
        said = subprocess.run(  # noqa: S603  (a server that tests are about to run)
            [path, "--version"], capture_output=True, text=True, check=True
        ).stdout
        found.setdefault(said.partition("v=")[2].partition(" ")[0], path)
    return found or {"no-server": ""}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of a ``subject`` on all nodes, tests of a ``server`` on servers."""
    servers = _versions()
    if "subject" in metafunc.fixturenames:
        every = {MEMORY: MEMORY, **servers}
        metafunc.parametrize("subject", every.values(), ids=every, indirect=True)
    elif "server" in metafunc.fixturenames:
        metafunc.parametrize("server", servers.values(), ids=servers, indirect=True)


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, ServerSubject]]:
    """Keep the servers of earlier tests for later ones, by their path."""
    started: dict[str, ServerSubject] = {}
    yield started
    for server in started.values():
        server.stop()


def _server_at(path: str, request: pytest.FixtureRequest) -> ServerSubject:
    servers: dict[str, ServerSubject] = request.getfixturevalue("servers")
    if path not in servers:
        binary = path or request.getfixturevalue("redis_server")
        servers[path] = ServerSubject(DevNode(binary=binary))
    return servers[path]


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return a node with keys that no other test uses; they are empty."""
    if request.param == MEMORY:
        return MemorySubject()
    return _server_at(request.param, request).anew()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> ServerSubject:
    """Return a real server with keys that no other test uses."""
    return _server_at(request.param, request).anew()


@pytest.fixture
def listener(subject: Subject, request: pytest.FixtureRequest) -> Iterator[Listener]:
    """Return a listener on a channel of the node."""
    listener = Listener(subject, subject.key(getattr(request, "param", "w")))
    yield listener
    listener.close()
