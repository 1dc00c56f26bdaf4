"""``redlock doctor``: its output, its exit codes, and the ACL rules that it prints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions
from celery_redlock.errors import QuorumUnreachable
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.acl import COMMANDS, OUR_KEYS, acl_rules
from celery_redlock.operations.doctor import Severity, diagnose
from celery_redlock.operations.inspect import NodeState, inspect_nodes, node_status
from celery_redlock.operations.scan import keys_without_ttl, scan
from celery_redlock.records.beat_slots import SlotRecord, mark_slot
from celery_redlock.records.standbys import StandbyList, leadership_of
from tests.cli.project import Project
from tests.nodes.support import client, until

LIMITED = ServerOptions(
    username="redlock", password="a secret", acl=acl_rules("redlock")
)


# -- The command -------------------------------------------------------------------


def test_doctor_prints_facts_and_remedies(project: Project) -> None:
    """Each finding has a severity, code, fact and remedy; the worst come first."""
    project.kill(0)
    project.nodes[1].command("CONFIG", "SET", "maxmemory", "50mb")
    project.nodes[1].command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    run = project.redlock("doctor")

    text = " ".join(run.out.split())
    label = project.label(1)
    assert run.code == 3
    assert f"error eviction Node {label} evicts keys (allkeys-lru)" in text
    assert "Set maxmemory-policy to noeviction." in text
    assert "warning unreachable" in text
    assert text.index("error") < text.index("warning") < text.index("note")
    assert "2 errors, 1 warning, 1 note." in text


def test_doctor_in_json_has_every_finding(project: Project) -> None:
    """A program gets code, severity, fact, remedy, and the node or task."""
    project.kill(0)

    run = project.redlock("doctor", "--json")

    label = project.label(0)
    found = {finding["code"]: finding for finding in run.document["findings"]}
    assert run.code == 1
    assert run.document["worst"] == "warning"
    assert found["unreachable"] == {
        "code": "unreachable",
        "severity": "warning",
        "about": label,
        "fact": f"Node {label} refused the connection.",
        "remedy": "Start it, or check the network and the firewall.",
        "address": found["unreachable"]["address"],
    }


def test_doctor_of_a_healthy_deployment_exits_with_0(project: Project) -> None:
    """A note is no warning: here, that all nodes are on one machine."""
    run = project.run("doctor")

    assert run.code == 0
    assert run.out.count("votes") == 3
    assert run.out.endswith("1 note.\n")


# -- The ACL -----------------------------------------------------------------------


def test_doctor_acl_prints_the_rules(project: Project) -> None:
    """It prints the rules that the tests below use."""
    run = project.redlock("doctor", "--acl")

    assert run.code == 0
    assert f"ACL SETUSER redlock on >PASSWORD {acl_rules('redlock')}" in run.out


def test_acl_allows_select_for_another_database(project: Project) -> None:
    """Only clients of a database other than 0 need SELECT."""
    nodes = ["redis://a/0", "redis://b/0", "redis://c/1"]

    run = project.redlock("doctor", "--acl", "--json", redlock_nodes=nodes)

    assert "+select" in run.document["rules"]
    assert "+select" not in acl_rules("redlock")


@pytest.mark.parametrize(("database", "selects"), [(0, False), (1, True)])
def test_acl_looks_at_the_database_of_a_node_with_a_name(
    project: Project, database: int, selects: bool
) -> None:
    """Its name says nothing of the database: the rules name SELECT if it is needed."""
    nodes = [{"name": "first/1", "url": f"redis://a/{database}"}]

    run = project.redlock("doctor", "--acl", "--json", redlock_nodes=nodes)

    assert ("+select" in run.document["rules"]) is selects


def refused(node: DevNode) -> list[str]:
    """Return what the node has denied its user, from its own log."""
    log = node.command("ACL", "LOG")
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in log]
    # redis-py tries to set its name, and works without.
    return [e["object"] for e in entries if not e["object"].startswith("client")]


def is_locked(node: DevNode, key: str) -> bool:
    """Tell whether this node has the lock."""
    return bool(node.command("EXISTS", f"redlock:lock:{key}"))


def recovers(redlock: Redlock) -> bool:
    """Ask each node for a vote, and tell whether all gave one."""
    return not redlock.check().problems


def is_granted(redlock: Redlock, key: str) -> bool:
    """Tell whether a lock of this key is granted."""
    try:
        redlock.acquire(key)
    except QuorumUnreachable:
        return False
    return True


def denied(redlock: Redlock) -> list[tuple[str, ...]]:
    """Return what an inspection of each node finds to be denied."""
    return [report.denied for report in inspect_nodes(redlock, span=0.01)]


@pytest.mark.every_server
def test_acl_is_enough_for_all_operations(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Nodes deny nothing to locks, renewals, recovery, elections and listings."""
    nodes = start_nodes(3, options=LIMITED, max_ttl=6.0, initialize=False)
    with client(nodes, ttl=6.0, max_ttl=6.0) as redlock:
        redlock.initialize()
        until(lambda: recovers(redlock))
        for node, number in zip(nodes.nodes, (7, 9, 8), strict=True):
            node.command("HSET", "redlock:meta", "floor", str(9 * 10**15 + number))
        lease = redlock.acquire(key)  # the nodes differ: the fence is raised
        nodes.nodes[0].command("DEL", f"redlock:lock:{key}")
        until(lambda: redlock.extend(lease) and is_locked(nodes.nodes[0], key))
        assert len(scan(redlock).held) == 1
        assert not any(keys_without_ttl(redlock).results.values())
        assert redlock.inspect(key).votes == 3
        assert redlock.release(lease) >= 2

        assert mark_slot(redlock, "slot", "task") is None
        record = SlotRecord(redlock, "beat")
        record.note({"entry": 1})
        assert record.flush()
        record.load()
        StandbyList(redlock, "beat", 30.0).enter("b" * 32, Holder.here())
        assert len(leadership_of(redlock, "beat").standbys) == 1

        nodes.nodes[1].restart()
        until(lambda: recovers(redlock), 40, what="the node to vote again")
        assert denied(redlock) == [()] * 3
        assert [refused(node) for node in nodes.nodes] == [[]] * 3


@pytest.mark.every_server
def test_each_missing_command_is_named(start_nodes: Callable[..., DevNodes]) -> None:
    """The doctor names each command that the ACL does not allow."""
    nodes = start_nodes(1, options=LIMITED)
    (node,) = nodes.nodes
    with client(nodes) as redlock:
        assert denied(redlock)[0] == ()
        for command in COMMANDS:
            verb = command.partition("|")[0]
            node.command("ACL", "SETUSER", "redlock", f"-{verb}")
            assert denied(redlock)[0] == (command,)
            node.command("ACL", "SETUSER", "redlock", f"+{command}")


@pytest.mark.every_server
@pytest.mark.parametrize("scripts", ["loaded", "missing"])
def test_node_is_said_to_vote_if_a_lock_gets_its_vote(
    start_nodes: Callable[..., DevNodes], scripts: str
) -> None:
    """Whichever command the ACL does not allow, and whether it has the scripts."""
    nodes = start_nodes(1, options=LIMITED)
    (node,) = nodes.nodes
    said, granted = {}, {}
    for command in COMMANDS:
        verb = command.partition("|")[0]
        node.command("ACL", "SETUSER", "redlock", f"-{verb}")
        if scripts == "missing":
            node.command("SCRIPT", "FLUSH")
        with client(nodes) as redlock:
            (status,) = node_status(redlock)
            if scripts == "missing":
                node.command("SCRIPT", "FLUSH")
            said[command] = status.state is NodeState.VOTES
            granted[command] = is_granted(redlock, command)
        node.command("ACL", "SETUSER", "redlock", f"+{command}")

    assert said == granted
    assert not granted["evalsha"]


@pytest.mark.every_server
def test_denied_keys_are_named(start_nodes: Callable[..., DevNodes]) -> None:
    """An ACL for another prefix differs from one without some commands."""
    nodes = start_nodes(1, options=LIMITED, initialize=False)
    with client(nodes, prefix="other") as redlock:
        assert denied(redlock)[0] == (OUR_KEYS,)


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("right", "fact"),
    [
        ("resetchannels", "the channels redlock:wake:*"),
        ("-subscribe", "the commands subscribe"),
    ],
)
def test_denied_right_that_no_vote_needs_is_a_warning(
    start_nodes: Callable[..., DevNodes], right: str, fact: str
) -> None:
    """Locks are granted, and a release wakes no call that waits."""
    nodes = start_nodes(1, options=LIMITED)
    nodes.nodes[0].command("ACL", "SETUSER", "redlock", right)
    with client(nodes) as redlock:
        found = diagnose(redlock, span=0.01)

    (finding,) = (it for it in found if it.code == "acl")
    assert finding.severity is Severity.WARNING
    assert finding.fact.endswith(f" denies our user {fact}.")
    assert "It votes, but without publish and subscribe" in finding.remedy


def test_examination_leaves_no_key_behind(start_nodes: Callable[..., DevNodes]) -> None:
    """The keys of a node stay as they were, also with some commands denied."""
    nodes = start_nodes(1, options=LIMITED)
    (node,) = nodes.nodes
    before = sorted(node.command("KEYS", "*"))
    with client(nodes) as redlock:
        for without in ("set", "del", "pexpire", "eval"):
            node.command("ACL", "SETUSER", "redlock", f"-{without}")
            denied(redlock)
            node.command("ACL", "SETUSER", "redlock", f"+{without}")

    until(lambda: sorted(node.command("KEYS", "*")) == before)


def test_doctor_ignores_codes_and_prints_the_page_of_the_others(
    start_project: Callable[..., Project],
) -> None:
    """The summary says which codes were left out."""
    project = start_project(1)

    whole = project.redlock("doctor")
    run = project.redlock("doctor", "--ignore", "few-nodes")

    assert (whole.code, run.code) == (0, 0)
    assert "docs/reference/findings.md#few-nodes" in whole.out
    assert "few-nodes\n" not in run.out
    assert "Left out: few-nodes." in run.out
    ignored = project.redlock("doctor", redlock_doctor_ignore=["few-nodes"])
    assert "Left out: few-nodes." in ignored.out
    misspelled = project.redlock("doctor", "--ignore", "few-node")
    assert misspelled.code == 2
    assert "--ignore has 'few-node'" in misspelled.err
    assert "Did you mean 'few-nodes'?" in misspelled.err


@pytest.mark.long
def test_remedies_name_the_app_of_the_command(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands in remedies can be typed as they are."""
    for node in project.nodes:
        node.command("DEL", "redlock:meta")

    assert "celery -A proj redlock init" in project.run("doctor").out
    monkeypatch.setattr(project, "app_name", "proj:app")
    named = project.run("doctor").out
    assert "celery -A proj:app redlock init" in " ".join(named.split())
