"""`DevNode`: servers that are paused, killed or restarted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions
from celery_redlock.errors import RedlockError
from tests.nodes.support import plain_client

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.every_server
def test_paused_node_accepts_and_does_not_answer(node: DevNode) -> None:
    """A paused node takes connections and commands, and answers once resumed."""
    impatient = plain_client(node, socket_timeout=0.2)

    node.pause()
    node.pause()

    assert node.is_running
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    node.resume()
    assert plain_client(node).ping()


@pytest.mark.every_server
def test_killed_node_is_gone(node: DevNode) -> None:
    """A killed node refuses connections; its address stays known."""
    url = node.url

    node.kill()
    node.kill()

    assert not node.is_running
    assert node.url == url
    with pytest.raises(redis.ConnectionError):
        plain_client(node).ping()


@pytest.mark.parametrize("act", ["pause", "resume", "command", "pid"])
def test_node_that_does_not_run_says_so(node: DevNode, act: str) -> None:
    """A dead node refuses operations that need a running server, with the remedy."""
    node.kill()

    with pytest.raises(RedlockError, match="Start or restart it"):
        getattr(node, act)() if act != "command" else node.command("PING")


# -- Restarting --------------------------------------------------------------------


@pytest.mark.every_server
def test_restarted_node_has_forgotten(node: DevNode) -> None:
    """A restart is another, empty server at the same address."""
    node.command("SET", "name", "value")
    before = node.pid, node.command("INFO")["run_id"]
    url = node.url

    node.restart()

    assert node.url == url
    assert node.pid != before[0]
    assert plain_client(node).info()["run_id"] != before[1]
    assert plain_client(node).get("name") is None


@pytest.mark.every_server
def test_restarted_node_keeps_its_memory_if_told(node: DevNode) -> None:
    """With `keep_memory` the new server has the keys of the old one."""
    node.command("SET", "name", "value")
    run_id = node.command("INFO")["run_id"]

    node.restart(keep_memory=True)

    assert node.command("INFO")["run_id"] != run_id
    assert node.command("GET", "name") == "value"


def test_restart_wakes_a_paused_node(node: DevNode) -> None:
    """A paused node can write its snapshot, too."""
    node.command("SET", "name", "value")
    node.pause()

    node.restart(keep_memory=True)

    assert node.command("GET", "name") == "value"


def test_restart_after_a_crash_goes_back_to_the_snapshot(node: DevNode) -> None:
    """A crash loses the writes after the last snapshot."""
    node.command("SET", "name", "old")
    node.command("SAVE")
    node.command("SET", "name", "new")
    node.kill()

    node.restart(keep_memory=True)

    assert node.command("GET", "name") == "old"


def test_restart_after_a_crash_loads_the_append_only_file(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """With an append-only file a crash loses nothing."""
    options = ServerOptions(config={"appendonly": "yes", "appendfsync": "always"})
    node = start_nodes(1, options=options, initialize=False).nodes[0]
    node.command("SET", "name", "value")
    node.kill()

    node.restart(keep_memory=True)

    assert node.command("GET", "name") == "value"


def test_restarted_node_has_loaded_everything(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """When `restart` returns, the server has loaded all of its keys."""
    config = {"appendonly": "yes", "aof-use-rdb-preamble": "no"}
    options = ServerOptions(config=config)
    node = start_nodes(1, options=options, initialize=False).nodes[0]
    script = "for i = 1, 300000 do redis.call('SET', i, i) end"
    node.command("EVAL", script, 0)
    node.kill()

    node.restart(keep_memory=True)

    assert node.command("GET", "300000") == "300000"


def test_restart_after_a_crash_without_keeping_is_empty(node: DevNode) -> None:
    """An old snapshot is not loaded without `keep_memory`."""
    node.command("SET", "name", "value")
    node.command("SAVE")
    node.kill()

    node.restart()

    assert node.command("GET", "name") is None
