"""``redlock release``: what was shown is released, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.lease import Holder
from celery_redlock.core.records.claims import Claims
from tests.nodes.support import client, locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.devnodes import DevNodes
    from tests.cli.project import Project

Hold = Any
KEY = "redlock:lock:k"
HOUR = 3600.0

# -- a lock ----------------------------------------------------------------------


def test_release_asks_and_releases_after_a_yes(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """The holder and the risk are shown before anything is done."""
    hold("k")

    run = project.redlock("release", "k", typed="y\n")

    assert run.code == 0
    assert "held by proj.send_invoice[id-of-k] on worker-1 (pid 4711)" in run.out
    assert "two can run" in run.out
    assert "Release this lock?" in run.err
    assert "Released on 3 of 3 nodes." in run.out
    assert not locks(three_nodes, "k")


@pytest.mark.parametrize("typed", ["n\n", "\n", ""], ids=["no", "enter", "closed"])
def test_release_without_a_yes_does_nothing(
    project: Project, three_nodes: DevNodes, hold: Hold, typed: str
) -> None:
    """After no, a bare Enter or closed stdin the lock stays."""
    hold("k")

    run = project.redlock("release", "k", typed=typed)

    assert run.code == 1
    assert "Nothing was done." in run.err
    assert len(locks(three_nodes, "k")) == 3


def test_release_dry_run_shows_and_does_nothing(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """It shows the lock, and neither asks nor releases."""
    hold("k")

    run = project.redlock("release", "k", "--dry-run", "--json")

    assert run.code == 0
    assert run.document["holders"][0]["task_id"] == "id-of-k"
    assert run.document["released"] == {}
    assert len(locks(three_nodes, "k")) == 3


def test_release_of_a_free_key_exits_with_1(project: Project) -> None:
    """There is nothing to release, and nothing is asked."""
    run = project.redlock("release", "free", "--yes")

    assert (run.code, run.out) == (1, "free is not held.\n")


def test_release_leaves_a_successor_alone(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """A lock that another client acquires during the question is not released."""
    hold("k")
    successor = f"{'f' * 32}.{'0' * 16}\n7\nproj.other\nid\nhost\n1\n0"

    with project.start("release", "k") as asking:
        asking.wait_for("Release this lock?")
        for node in three_nodes.nodes:
            node.command("SET", KEY, successor, "PX", 60_000)
        run = asking.type("y\n")

    assert run.code == 1
    assert "expired or has another holder" in run.out
    assert [node.command("GET", KEY) for node in three_nodes.nodes] == [successor] * 3


def test_release_names_nodes_that_it_could_not_reach(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """A node that is down keeps the lock until its ttl ends."""
    hold("k")
    three_nodes.nodes[0].kill()

    run = project.redlock("release", "k", "--yes")

    assert run.code == 0
    assert "Released on 2 of 3 nodes." in run.out
    assert "refused the connection" in run.out
    assert "until its ttl has ended" in run.out


def test_release_deletes_a_lock_on_a_minority(
    project: Project, three_nodes: DevNodes
) -> None:
    """A lock that is left on one node can be released."""
    value = f"{'f' * 32}.{'0' * 16}\n7\nproj.other\nid\nhost\n1\n0"
    three_nodes.nodes[0].command("SET", KEY, value)

    run = project.redlock("release", "k", "--yes")

    assert "held by proj.other[id] on host (pid 1), on 1 of 3 nodes" in run.out
    assert "Released on 1 of 3 nodes." in run.out
    assert not locks(three_nodes, "k")


def test_release_says_that_a_value_is_not_ours(
    project: Project, three_nodes: DevNodes
) -> None:
    """A value that another program wrote is named as such before it is deleted."""
    for node in three_nodes.nodes:
        node.command("SET", KEY, "by hand")

    run = project.redlock("release", "k", "--yes")

    assert "k has a value of another program, on 3 of 3 nodes." in run.out
    assert not locks(three_nodes, "k")


# -- claims and cool-downs ---------------------------------------------------------


@pytest.fixture
def claims(three_nodes: DevNodes) -> Iterator[Claims]:
    """Give the claims of a publisher on the test's three nodes."""
    with client(three_nodes) as redlock:
        redlock.check()  # connects to all of them
        yield Claims(redlock)


@pytest.fixture
def claim(claims: Claims) -> Callable[[str], None]:
    """Give a function that claims a call, as a publisher does."""

    def take(key: str) -> None:
        job = Holder("", task="proj.send_invoice", task_id=f"job-of-{key}", host="web")
        taken = claims.take(key, job, at_lock=False, at_cooldown=False)
        assert taken is None
        claims.keep(key, job.task_id, HOUR)

    return take


def left(nodes: DevNodes, kind: str = "claim") -> set[str]:
    """Return the calls with a claim, or cool-down, on any node."""
    head = f"redlock:{kind}:"
    names = [name for node in nodes.nodes for name in node.command("KEYS", f"{head}*")]
    return {name.removeprefix(head) for name in names}


def test_release_claims_shows_asks_and_releases_all(
    project: Project, three_nodes: DevNodes, claim: Callable[[str], None]
) -> None:
    """After ``celery purge`` the deleted jobs keep no call from being published."""
    claim("invoice:1")
    claim("invoice:2")

    run = project.redlock("release", "--claims", typed="y\n")

    assert run.code == 0
    assert "job-of-invoice:1" in run.out
    assert "3/3" in run.out
    assert "runs all the same" in run.out
    assert "Release 2 claims?" in run.err
    assert "Released 2 claims." in run.out
    assert left(three_nodes) == set()


def test_release_claims_of_a_pattern_leaves_the_others(
    project: Project, three_nodes: DevNodes, claim: Callable[[str], None]
) -> None:
    """With ``--claims``, KEY is a pattern."""
    claim("invoice:1")
    claim("report:1")

    run = project.redlock("release", "invoice:*", "--claims", "--yes")

    assert (run.code, run.err) == (0, "")
    assert left(three_nodes) == {"report:1"}


def test_release_claims_without_a_yes_does_nothing(
    project: Project, three_nodes: DevNodes, claim: Callable[[str], None]
) -> None:
    """After no, or with stdin closed, the claim stays."""
    claim("invoice:1")

    for typed in ("n\n", ""):
        run = project.redlock("release", "--claims", typed=typed)
        assert run.code == 1
        assert "Nothing was done." in run.err
    assert left(three_nodes) == {"invoice:1"}


def test_release_claims_dry_run_shows_and_does_nothing(
    project: Project, three_nodes: DevNodes, claim: Callable[[str], None]
) -> None:
    """A program gets the job of each claim, and no token."""
    claim("invoice:1")

    run = project.redlock("release", "--claims", "--dry-run", "--json")

    assert run.code == 0
    document = run.document
    (found,) = document["found"]
    assert (found["key"], found["task_id"]) == ("invoice:1", "job-of-invoice:1")
    assert 3500 < found["left"] <= HOUR
    assert (found["nodes"], document["released"]) == (3, 0)
    assert "token" not in found
    assert left(three_nodes) == {"invoice:1"}


def test_release_claims_leaves_a_successor_alone(
    project: Project, three_nodes: DevNodes, claims: Claims, claim: Callable[..., None]
) -> None:
    """A claim that another job takes during the question is not released."""
    claim("invoice:1")

    with project.start("release", "--claims") as asking:
        asking.wait_for("Release 1 claim?")
        claims.release("invoice:1", "job-of-invoice:1")
        job = Holder("", task="proj.send_invoice", task_id="successor")
        taken = claims.take("invoice:1", job, at_lock=False, at_cooldown=False)
        assert taken is None
        run = asking.type("y\n")

    assert run.code == 1
    assert "Released 0 claims." in run.out
    assert left(three_nodes) == {"invoice:1"}


def test_release_claims_of_nothing_exits_with_1(project: Project) -> None:
    """It does not ask if there is nothing to release."""
    run = project.redlock("release", "free", "--claims")

    assert (run.code, run.out) == (1, "There is no claim for free.\n")


def test_release_claims_names_nodes_that_it_could_not_reach(
    project: Project, three_nodes: DevNodes, claim: Callable[[str], None]
) -> None:
    """It releases the claim on the other nodes."""
    claim("invoice:1")
    three_nodes.nodes[0].kill()

    run = project.redlock("release", "--claims", "--yes")

    assert run.code == 0
    assert "refused the connection" in run.out
    assert "2/3" in run.out
    assert "Released 1 claim." in run.out


def test_release_claims_without_any_node_is_an_error(
    project: Project, three_nodes: DevNodes
) -> None:
    """Unreachable nodes may have claims: it exits with 3."""
    for node in three_nodes.nodes:
        node.kill()

    run = project.redlock("release", "--claims", "--yes")

    assert run.code == 3
    assert "refused the connection" in run.err


def test_release_cool_downs_lets_calls_run_again(
    project: Project, three_nodes: DevNodes, claims: Claims, claim: Callable[..., None]
) -> None:
    """It ends the ``unique_for`` of a call. Claims stay."""
    claim("invoice:1")
    done = Holder("", task="proj.send_invoice", task_id="done")
    claims.cool_down("invoice:1", done, HOUR)
    assert claims.succeeded("invoice:1", "another") is not None

    run = project.redlock("release", "invoice:1", "--cool-downs", "--yes")

    assert run.code == 0
    assert "Released 1 cool-down." in run.out
    assert claims.succeeded("invoice:1", "another") is None
    assert left(three_nodes) == {"invoice:1"}


@pytest.mark.parametrize("words", [(), ("k", "--claims", "--cool-downs")])
def test_release_without_a_key_or_of_two_kinds_is_refused(
    project: Project, words: tuple[str, ...]
) -> None:
    """A lock is released by its key only: never all locks by mistake."""
    run = project.redlock("release", "--yes", *words)

    assert run.code == 2
    assert "Missing argument 'KEY'" in run.err or "not both" in run.err
