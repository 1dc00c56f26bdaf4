"""``redlock ls``: the locks that are held, whatever state the nodes are in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNode, DevNodes
    from tests.cli.project import Project

Hold = Any
FOREIGN = f"{'f' * 32}.{'0' * 16}\n7\nproj.other\nother-id\nworker-9\n99\n0"


def test_ls_lists_who_holds_what(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """Each lock has a line with its key, task, id, host, pid, fence and votes."""
    lease = hold(three_nodes, "invoice:42")

    run = project.redlock("ls")

    assert run.code == 0
    line = next(text for text in run.out.splitlines() if "invoice:42" in text)
    words = ("proj.send_invoice", "id-of-invoice:42", "worker-1", "4711", "3/3")
    assert all(word in line for word in (*words, str(lease.fence)))
    assert "1 lock held, as seen on 3 of 3 nodes." in run.out


def test_ls_in_json_is_one_document(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """A program gets all facts, in seconds, and no token: it would prove ownership."""
    lease = hold(three_nodes, "invoice:42", started=1_700_000_000.0)

    run = project.redlock("ls", "--json")

    (lock,) = run.document["locks"]
    assert lock.pop("age") > 0
    assert 0 < lock.pop("ttl_left") <= 60
    assert lock == {
        "key": "invoice:42",
        "task": "proj.send_invoice",
        "task_id": "id-of-invoice:42",
        "host": "worker-1",
        "pid": 4711,
        "started": 1_700_000_000.0,
        "fence": lease.fence,
        "votes": 3,
        "held": True,
    }
    assert lease.token not in run.out


def test_ls_filters_by_pattern(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """A pattern picks keys as Redis understands it."""
    for key in ("invoice:1", "invoice:2", "report:1"):
        hold(three_nodes, key)

    run = project.redlock("ls", "invoice:*", "--json")

    assert [lock["key"] for lock in run.document["locks"]] == ["invoice:1", "invoice:2"]


def test_ls_with_a_prefix_of_wildcards_shows_its_own_keys_only(
    start_nodes: Callable[..., DevNodes], project_on: Callable[..., Project]
) -> None:
    """What the prefix is called is no pattern."""
    nodes = start_nodes(1)
    for name in ("a*[x]:lock:mine", "abx:lock:theirs"):
        nodes.nodes[0].command("SET", name, FOREIGN, "PX", 60_000)

    run = project_on(nodes, redlock_prefix="a*[x]").redlock("ls", "--json")

    assert [lock["key"] for lock in run.document["locks"]] == ["mine"]


def test_ls_works_with_a_minority_down(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """Two of three nodes can tell; which one was not seen, and why, is said."""
    hold(three_nodes, "invoice:42")
    three_nodes.nodes[0].kill()

    run = project.redlock("ls")

    assert run.code == 0
    assert "invoice:42" in run.out
    assert "2/3" in run.out
    port = three_nodes.nodes[0].port
    assert f"Not seen: 127.0.0.1:{port}/0 refused the connection." in run.out


def test_ls_with_a_hung_node_does_not_hang(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """A node that accepts connections and says nothing is given up."""
    hold(three_nodes, "invoice:42")
    three_nodes.nodes[0].pause()

    run = project.redlock("ls", redlock_connect_timeout=0.3)

    assert run.code == 0
    assert "invoice:42" in run.out
    assert "within 0.3 s" in run.out


def test_ls_with_a_majority_down_says_that_it_cannot_tell(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """One of three nodes is not enough to call anything held."""
    hold(three_nodes, "invoice:42")
    for node in three_nodes.nodes[:2]:
        node.kill()

    run = project.redlock("ls")

    assert run.code == 3
    assert "invoice:42" not in run.out
    assert "Too few nodes" in run.out


def test_ls_shows_on_demand_what_no_majority_holds(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """What is left on one node is not held; ``--all`` shows it."""
    hold(three_nodes, "held")
    three_nodes.nodes[0].command("SET", "redlock:lock:left", FOREIGN, "PX", 60_000)

    usual, everything = project.redlock("ls"), project.redlock("ls", "--all")

    assert "left" not in usual.out.split("1 more key")[0]
    assert "1 more key on fewer nodes than a majority" in usual.out
    assert "left" in everything.out
    assert "1/3" in everything.out


def test_ls_tells_two_holders_of_one_key_apart(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """A key that a minority names another holder of has two lines."""
    hold(three_nodes, "k")
    three_nodes.nodes[0].command("SET", "redlock:lock:k", FOREIGN, "PX", 60_000)

    locks = project.redlock("ls", "--all", "--json").document["locks"]

    assert {(lock["task"], lock["votes"], lock["held"]) for lock in locks} == {
        ("proj.send_invoice", 2, True),
        ("proj.other", 1, False),
    }


def scans(node: DevNode) -> list[list[str]]:
    """Return all commands of a node that walked its keys."""
    said = node.command("SLOWLOG", "GET", "100000")
    commands = [words for _, _, _, words, *_ in said]
    return [words for words in commands if words[0].upper() in ("SCAN", "KEYS")]


@pytest.mark.every_server
def test_ls_walks_in_bounded_steps(
    start_nodes: Callable[..., DevNodes], project_on: Callable[..., Project]
) -> None:
    """No node is asked to look at more than five hundred keys in one go."""
    nodes = start_nodes(3)
    locks = 2000
    for node in nodes.nodes:
        pairs = (
            word
            for number in range(locks)
            for word in (f"redlock:lock:{number:04}", FOREIGN)
        )
        node.command("MSET", *pairs)
        node.command("CONFIG", "SET", "slowlog-max-len", "100000")
        node.command("CONFIG", "SET", "slowlog-log-slower-than", "0")

    run = project_on(nodes).redlock("ls", "--json")

    assert len(run.document["locks"]) == locks
    for node in nodes.nodes:
        walked = scans(node)
        assert len(walked) >= locks / 500
        for verb, *_, count_word, count in walked:
            assert (verb, count_word, int(count) <= 500) == ("SCAN", "COUNT", True)


def test_ls_fits_the_terminal(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """Lines are cut to its width, and names do not steer it."""
    hold(three_nodes, f"{'long' * 30}\x1b[2J", task_id="i" * 36)

    shown = project.on_a_terminal("ls", columns=80)

    plain = re.sub(r"\x1b\[(0|2|32)m|\r", "", shown)  # colors
    assert "\x1b" not in plain
    assert "longlong" in plain
    assert max(map(len, plain.splitlines())) <= 80
