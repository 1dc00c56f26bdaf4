"""``redlock doctor``: what it says, its exit codes, and the ACL that it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.examination import examine
from celery_redlock.core.lease import Holder
from celery_redlock.core.permissions import COMMANDS, OUR_KEYS, acl_rules
from celery_redlock.core.survey import eternal_keys, survey
from celery_redlock.devnodes import ServerOptions
from celery_redlock.leadership import StandbyList, leadership_of
from celery_redlock.slots import SlotRecord, stand_for
from tests.nodes.support import client, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNode, DevNodes
    from tests.cli.project import Project

LIMITED = ServerOptions(
    username="redlock", password="a secret", acl=acl_rules("redlock")
)


# -- The command -------------------------------------------------------------------


def test_doctor_says_what_is_wrong_and_what_to_do(
    project: Project, three_nodes: DevNodes
) -> None:
    """Each finding has its severity, code, fact and remedy; the worst come first."""
    three_nodes.nodes[0].kill()
    three_nodes.nodes[1].command("CONFIG", "SET", "maxmemory", "50mb")
    three_nodes.nodes[1].command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    run = project.redlock("doctor")

    said = " ".join(run.out.split())
    label = f"127.0.0.1:{three_nodes.nodes[1].port}/0"
    assert run.code == 3
    assert f"error eviction Node {label} evicts keys (allkeys-lru)" in said
    assert "Set maxmemory-policy to noeviction." in said
    assert "warning unreachable" in said
    assert said.index("error") < said.index("warning") < said.index("note")
    assert "1 error, 2 warnings, 1 note." in said


def test_doctor_in_json_has_every_finding(
    project: Project, three_nodes: DevNodes
) -> None:
    """A program gets code, severity, fact and remedy, and what it is about."""
    three_nodes.nodes[0].kill()

    run = project.redlock("doctor", "--json")

    label = f"127.0.0.1:{three_nodes.nodes[0].port}/0"
    found = {finding["code"]: finding for finding in run.document["findings"]}
    assert run.code == 1
    assert run.document["worst"] == "warning"
    assert found["unreachable"] == {
        "code": "unreachable",
        "severity": "warning",
        "about": label,
        "fact": f"Node {label} refused the connection.",
        "remedy": "Start it, or mend the way to it.",
    }


def test_doctor_of_a_healthy_deployment_exits_with_0(project: Project) -> None:
    """Notes, such as that all nodes are on one machine, are no warnings."""
    run = project.redlock("doctor")

    assert run.code == 0
    assert run.out.count("votes") == 3
    assert run.out.endswith("1 note.\n")


# -- The ACL -----------------------------------------------------------------------


def test_doctor_prints_an_acl(project: Project) -> None:
    """What is printed is what is tested below."""
    run = project.redlock("doctor", "--acl")

    assert run.code == 0
    assert f"ACL SETUSER redlock on >PASSWORD {acl_rules('redlock')}" in run.out


def test_acl_has_select_where_a_database_is_selected(project: Project) -> None:
    """Only who uses another database than 0 needs it."""
    nodes = ["redis://a/0", "redis://b/0", "redis://c/1"]

    run = project.redlock("doctor", "--acl", "--json", redlock_nodes=nodes)

    assert "+select" in run.document["rules"]
    assert "+select" not in acl_rules("redlock")


def refused(node: DevNode) -> list[str]:
    """Return what the node has refused to its user, by its own log."""
    said = node.command("ACL", "LOG")
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in said]
    # redis-py offers to tell its name, and does without.
    return [e["object"] for e in entries if not e["object"].startswith("client")]


def is_locked(node: DevNode, key: str) -> bool:
    """Tell whether this node has the lock."""
    return bool(node.command("EXISTS", f"redlock:lock:{key}"))


def recovers(redlock: Redlock) -> bool:
    """Ask for a vote of each node; tell whether all give it."""
    return not redlock.check().problems


@pytest.mark.every_server
def test_acl_is_enough_for_all_that_we_do(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Take, renew, restore, release, recover, lead, list: the nodes refuse nothing."""
    nodes = start_nodes(3, options=LIMITED, max_ttl=1.5, initialize=False)
    with client(nodes, ttl=1.5, max_ttl=1.5) as redlock:
        redlock.initialize()
        assert recovers(redlock)
        for node, number in zip(nodes.nodes, (7, 9, 8), strict=True):
            node.command("HSET", "redlock:fence", "floor", str(9 * 10**15 + number))
        lease = redlock.acquire(key)  # the nodes differ: the fence is raised
        nodes.nodes[0].command("DEL", f"redlock:lock:{key}")
        until(lambda: redlock.extend(lease) and is_locked(nodes.nodes[0], key))
        assert len(survey(redlock.addresses, "redlock", timeout=1.0).held) == 1
        assert eternal_keys(redlock.addresses, "redlock", timeout=1.0) == ({}, {})
        assert redlock.inspect(key).votes == 3
        assert redlock.release(lease) >= 2

        assert stand_for(redlock, "slot", "task") is None
        record = SlotRecord(redlock, "beat")
        record.note({"entry": 1})
        assert record.flush()
        record.load()
        StandbyList(redlock, "beat", 1.0).enter("b" * 32, Holder.here())
        assert len(leadership_of(redlock, "beat").standbys) == 1

        nodes.nodes[1].restart()
        until(lambda: recovers(redlock), what="the node to vote again")
        assert [chart.denied for chart in examine(redlock, span=0.05)] == [()] * 3
        said = [refused(node) for node in nodes.nodes]

    assert said == [[], [], []]


@pytest.mark.every_server
def test_each_missing_command_is_named(start_nodes: Callable[..., DevNodes]) -> None:
    """Whatever one takes away from the ACL, the doctor says which it is."""
    nodes = start_nodes(1, options=LIMITED)
    (node,) = nodes.nodes
    with client(nodes) as redlock:
        assert examine(redlock, span=0.01)[0].denied == ()
        for command in COMMANDS:
            verb = command.partition("|")[0]
            node.command("ACL", "SETUSER", "redlock", f"-{verb}")
            assert examine(redlock, span=0.01)[0].denied == (command,)
            node.command("ACL", "SETUSER", "redlock", f"+{command}")


def test_keys_that_are_not_allowed_are_named(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """An ACL for another prefix is told from one that lacks commands."""
    nodes = start_nodes(1, options=LIMITED, initialize=False)
    with client(nodes, prefix="other") as redlock:
        assert examine(redlock, span=0.01)[0].denied == (OUR_KEYS,)


def test_what_is_tried_leaves_nothing_behind(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """Whatever is allowed, an examination leaves the keys of a node as they were."""
    nodes = start_nodes(1, options=LIMITED)
    (node,) = nodes.nodes
    before = sorted(node.command("KEYS", "*"))
    with client(nodes) as redlock:
        for without in ("set", "del", "pexpire", "eval"):
            node.command("ACL", "SETUSER", "redlock", f"-{without}")
            examine(redlock, span=0.01)
            node.command("ACL", "SETUSER", "redlock", f"+{without}")

    until(lambda: sorted(node.command("KEYS", "*")) == before)
