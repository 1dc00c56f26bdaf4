"""What a diagnosis finds of nodes that do not answer or do not vote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.devnodes import ServerOptions
from celery_redlock.diagnostics import diagnose
from tests.cli.findings import ERROR, WARNING, codes, found_on, label, the
from tests.nodes.support import client, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes


@pytest.mark.every_server
def test_healthy_deployment_is_met_with_silence(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """Three and five nodes, well set up and in use: nothing to complain about."""
    for count in (3, 5):
        nodes = start_nodes(count)
        with client(nodes) as redlock:
            redlock.acquire("k")
            assert codes(diagnose(redlock)) == set()


def test_node_that_is_down_is_unreachable(five_nodes: DevNodes) -> None:
    """One of five is missed, and the others do."""
    five_nodes.nodes[2].kill()

    found = found_on(five_nodes)

    assert codes(found) == {"unreachable"}
    finding = the("unreachable", found)
    assert finding.severity is WARNING
    assert finding.fact == f"Node {label(five_nodes.nodes[2])} refused the connection."


def test_node_that_hangs_is_unreachable(five_nodes: DevNodes) -> None:
    """A stopped process still accepts connections; it is given up in time."""
    five_nodes.nodes[2].pause()

    found = found_on(five_nodes, connect_timeout=0.3)

    assert "within 0.3 s" in the("unreachable", found).fact


def test_wrong_password_is_named_as_such(start_nodes: Callable[..., DevNodes]) -> None:
    """The remedy is another one than for a node that is down."""
    options = ServerOptions(password="right")
    nodes = start_nodes(1, options=options, initialize=False)

    found = found_on([nodes.urls[0].replace("right", "wrong")])

    finding = the("unreachable", found)
    assert "rejected the credentials" in finding.fact
    assert "password" in finding.remedy


def test_bare_quorum_is_at_its_edge(three_nodes: DevNodes) -> None:
    """Two of three vote: it works, and one more loss stops everything."""
    three_nodes.nodes[0].kill()

    found = found_on(three_nodes)

    assert codes(found) == {"unreachable", "quorum-edge"}
    assert the("quorum-edge", found).severity is WARNING


def test_no_quorum_is_an_error(three_nodes: DevNodes) -> None:
    """One of three votes: nothing can be locked."""
    for node in three_nodes.nodes[:2]:
        node.kill()

    found = found_on(three_nodes)

    assert found[0] is the("no-quorum", found)
    assert found[0].severity is ERROR
    assert "Only 1 of 3 nodes vote" in found[0].fact


def test_slow_node_is_named(five_nodes: DevNodes) -> None:
    """Who answers in more than half of the time that is allowed is too slow."""
    finding = found_on(five_nodes, node_timeout=1e-6)[0]

    assert (finding.code, finding.severity) == ("slow", WARNING)
    assert "redlock_node_timeout is 0.001 ms" in finding.fact


def test_new_node_will_be_in_quarantine(start_nodes: Callable[..., DevNodes]) -> None:
    """It has not been asked yet, so its wait has not even begun."""
    nodes = start_nodes(3, initialize=False)

    found = found_on(nodes)

    assert codes(found) == {"quarantine", "no-quorum"}
    assert "will not vote for 62 s from when it is first asked" in found[1].fact


def test_node_that_restarted_empty_is_in_quarantine(five_nodes: DevNodes) -> None:
    """How long it still does not vote is said."""
    five_nodes.nodes[0].restart()
    with client(five_nodes) as redlock:
        redlock.check()

        found = diagnose(redlock, span=0.05)

    assert codes(found) == {"quarantine"}
    assert "does not vote for 6" in the("quarantine", found).fact


def test_node_after_its_quarantine_waits_for_fences(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """Its quarantine has ended, and nobody has told it the fences yet."""
    nodes = start_nodes(5, max_ttl=0.5)
    short = {"ttl": 0.5, "max_ttl": 0.5, "node_timeout": 0.1}
    nodes.nodes[0].restart()
    with client(nodes, **short) as redlock:
        redlock.check()
    until(lambda: not nodes.nodes[0].command("EXISTS", "redlock:quarantine"))

    found = found_on(nodes, **short)

    assert codes(found) == {"unsynced", "ttl"}


def test_other_settings_are_told_apart_by_what_differs(
    three_nodes: DevNodes,
) -> None:
    """Another max_ttl, and another list of nodes, are named with both values."""
    other_ttl = found_on(three_nodes, max_ttl=120.0)
    other_list = found_on(three_nodes.urls[:2])

    missing = label(three_nodes.nodes[2])
    assert codes(other_ttl) == {"configuration", "no-quorum"}
    fact = other_ttl[1].fact
    assert "their redlock_max_ttl is 60 s, yours 120 s" in fact
    assert f"they have {missing}, which you have not" in other_list[1].fact


def test_unfinished_reconfiguration_is_found(three_nodes: DevNodes) -> None:
    """Closed nodes say where they are moving to, and the remedy is to go on."""
    for node in three_nodes.nodes:
        node.command("HSET", "redlock:meta", "config", "closed: moving to elsewhere")

    found = found_on(three_nodes)

    assert codes(found) == {"closed", "no-quorum"}
    assert "moving to elsewhere" in found[1].fact
    assert "reconfigure" in found[1].remedy
