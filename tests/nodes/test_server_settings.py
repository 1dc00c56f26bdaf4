"""Nodes with unusual settings, and unusual ways to them.

Full memory, renamed commands, RESP3, and bytes that arrive one by one.
``docs/how-to/choose-nodes.md`` says what users see of each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_redlock.devnodes import DevNodes, ServerOptions
from celery_redlock.devnodes.processes import Process, free_port
from celery_redlock.errors import RedlockError
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.acl import COMMANDS
from celery_redlock.operations.doctor import Severity, diagnose
from celery_redlock.operations.scan import scan
from tests.nodes.support import (
    StartNodes,
    client,
    held,
    proxied,
    refusal,
    until,
    until_all_vote,
    until_nothing_is_left,
    use,
)

# -- Full memory -------------------------------------------------------------------


@pytest.mark.every_server
def test_full_memory_refuses_new_locks_only(three_nodes: DevNodes, key: str) -> None:
    """A held lock is renewed and released; a new one is refused with the reason."""
    with client(three_nodes) as redlock:
        until_all_vote(redlock)
        lease = held(redlock, three_nodes, key)
        for node in three_nodes.nodes:
            node.command("CONFIG", "SET", "maxmemory", "1")

        error = refusal(redlock, f"{key}-other")
        assert str(error).count("OOM command not allowed") == 3
        assert "Nothing is held" in str(error)
        assert redlock.extend(lease)
        assert redlock.release(lease) >= 2
        until_nothing_is_left(three_nodes)

        for node in three_nodes.nodes:
            node.command("CONFIG", "SET", "maxmemory", "0")
        use(redlock, key)


def test_log_names_a_node_that_refuses_while_the_others_grant(
    three_nodes: DevNodes, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No lock is lost by it, so no outage tells: the next lost node would be one."""
    with client(three_nodes) as redlock:
        until_all_vote(redlock)
        three_nodes.nodes[1].command("CONFIG", "SET", "maxmemory", "1")
        caplog.clear()

        use(redlock, key)
        until(lambda: "OOM command not allowed" in caplog.text)

        (line,) = [it for it in caplog.records if "OOM" in it.getMessage()]
        assert line.levelname == "WARNING"
        assert vars(line)["redlock_event"] == "node-refused"
        assert vars(line)["redlock_node"] == redlock.labels[1]


# -- Renamed commands --------------------------------------------------------------


def without(*commands: str) -> ServerOptions:
    """Return the options of a server that does not know these commands."""
    lines = "\nrename-command ".join(f'{command} ""' for command in commands)
    return ServerOptions(config={"rename-command": lines})


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("command", "nodes_named"),
    [
        *(("EVALSHA", 2), ("HGET", 2), ("SET", 2)),
        ("TIME", 1),  # init ends at the first node that does not tell it
    ],
)
def test_unknown_command_is_named(
    start_nodes: StartNodes, key: str, command: str, nodes_named: int
) -> None:
    """The error of init or of an acquire names it, also if a script calls it."""
    nodes = start_nodes(3, options=without(command), initialize=False)

    def init_and_acquire(redlock: Redlock) -> None:
        redlock.initialize()
        redlock.acquire(key)

    with client(nodes) as redlock, pytest.raises(RedlockError) as refused:
        init_and_acquire(redlock)

    fact = f"does not know the command {command}"
    assert str(refused.value).count(fact) >= nodes_named


@pytest.mark.every_server
def test_doctor_names_all_unknown_commands(start_nodes: StartNodes) -> None:
    """One finding says which are unknown, and what to do."""
    verbs = {name: name.partition("|")[0].upper() for name in COMMANDS}
    del verbs["info"], verbs["set"]  # each ends the inspection early
    del verbs[
        "hstrlen"
    ]  # it marks that a node has voted: no node is asked that has not
    nodes = start_nodes(1, options=without(*verbs.values()), initialize=False)
    with client(nodes) as redlock:
        findings = diagnose(redlock, span=0.01)

    assert "acl" not in [finding.code for finding in findings]
    (finding,) = (it for it in findings if it.code == "commands")
    names = ", ".join(sorted(verbs))
    assert finding.fact.endswith(f" does not know the commands {names}.")
    assert "rename-command" in finding.remedy


@pytest.mark.every_server
@pytest.mark.parametrize(
    "command", ["HELLO", "CLIENT", "SCRIPT", "PUBLISH", "SUBSCRIBE", "CONFIG"]
)
def test_locks_need_no_more_commands_than_they_say(
    start_nodes: StartNodes, key: str, command: str
) -> None:
    """Without one of these, locks are taken, renewed and released all the same."""
    nodes = start_nodes(3, options=without(command))
    with client(nodes) as redlock:
        use(redlock, key)
        until_nothing_is_left(nodes)
        found = diagnose(redlock, span=0.01)

    assert Severity.ERROR not in {finding.severity for finding in found}


@pytest.mark.every_server
def test_unknown_info_is_named(redis_server: str, tmp_path: Path, key: str) -> None:
    """A server cannot be judged without INFO, so it is no node."""
    port = free_port()
    command = [redis_server, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    server = Process(
        "server without INFO",
        [*command, "--rename-command", "INFO", ""],
        log=tmp_path / "log",
        ready="eady to accept connections",
    )
    server.start()
    try:
        server.wait_until_ready()
        with client([f"redis://127.0.0.1:{port}/0"]) as redlock:
            refusal(redlock, key, says="does not know the command INFO")
            (finding,) = (
                it for it in diagnose(redlock, span=0.01) if it.code == "commands"
            )
            assert finding.fact.endswith("does not know the command info.")
    finally:
        server.kill()


@pytest.mark.every_server
def test_unknown_command_does_not_show_the_token(
    start_nodes: StartNodes, key: str
) -> None:
    """The server repeats the words of the command, and our error leaves them out."""
    nodes = start_nodes(1, options=without("EVALSHA"), initialize=False)
    with client(nodes) as redlock, pytest.raises(RedlockError) as refused:
        redlock.acquire(key, base="5" * 32)

    assert "does not know the command EVALSHA" in str(refused.value)
    assert "5555" not in str(refused.value)


@pytest.mark.every_server
@pytest.mark.parametrize("command", ["HMGET", "SCAN"])
def test_init_names_the_command_that_it_misses(
    start_nodes: StartNodes, command: str
) -> None:
    """It looks at a node by commands, and not by scripts only."""
    nodes = start_nodes(1, options=without(command), initialize=False)
    with client(nodes) as redlock, pytest.raises(RedlockError) as refused:
        redlock.initialize()

    assert f"does not know the command {command}" in str(refused.value)
    assert "nothing was changed" in str(refused.value)


# -- RESP3 -------------------------------------------------------------------------


@pytest.mark.every_server
def test_url_that_asks_for_resp3_gets_resp2(shared_nodes: DevNodes, key: str) -> None:
    """A RESP3 server may push frames that answer no request, so none is asked for."""
    urls = [f"{url}?protocol=3" for url in shared_nodes.urls]
    with client(urls) as redlock:
        until_all_vote(redlock)
        use(redlock, key)
        for node in shared_nodes.nodes:
            assert "resp=3" not in str(node.command("CLIENT", "LIST"))


# -- Bytes that arrive one by one --------------------------------------------------


@pytest.mark.long
def test_locks_work_where_bytes_arrive_one_by_one(
    three_nodes: DevNodes, key: str
) -> None:
    """In both directions: scripts for new connections, long replies, lists of locks."""
    slow: dict[str, float] = {"node_timeout": 15.0, "connect_timeout": 60.0}
    holder = Holder.here(task="t" * 5_000, task_id="id")
    with proxied(three_nodes, ttl=60.0, **slow) as (lines, redlock):
        until_all_vote(redlock)
        for line in lines:
            line.piece = 1
        lease = redlock.acquire(key, holder=holder)
        assert redlock.extend(lease)
        found = redlock.inspect(key)
        assert found.holder
        assert found.holder.task == holder.task
        assert [(one.key, one.holder.task) for one in scan(redlock).found] == [
            (key, holder.task)
        ]
        lines[0].drop()  # its scripts are sent anew
        until_all_vote(redlock, 60.0)
        assert redlock.release(lease) >= 2
        until_nothing_is_left(three_nodes)
