"""``redlock release --claims``: after a purge, calls may be published again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.claims import Claims
from celery_redlock.core.lease import Holder
from tests.nodes.support import client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.devnodes import DevNodes
    from tests.cli.project import Project

HOUR = 3600.0


@pytest.fixture
def claims(three_nodes: DevNodes) -> Iterator[Claims]:
    """Give the claims of a publisher on the test's three nodes."""
    with client(three_nodes) as redlock:
        redlock.check()  # connects to all of them
        yield Claims(redlock)


@pytest.fixture
def claim(claims: Claims) -> Callable[[str], None]:
    """Give a function that claims a call as a publisher does."""

    def take(key: str) -> None:
        job = Holder("", task="proj.send_invoice", task_id=f"job-of-{key}", host="web")
        taken = claims.take(key, job, at_lock=False, at_cooldown=False)
        assert taken is None
        claims.keep(key, job.task_id, HOUR)

    return take


def left(nodes: DevNodes, kind: str = "claim") -> set[str]:
    """Return the calls that are claimed on any node."""
    head = f"redlock:{kind}:"
    names = [name for node in nodes.nodes for name in node.command("KEYS", f"{head}*")]
    return {name.removeprefix(head) for name in names}


def test_release_claims_shows_asks_and_releases_all(
    project: Project, three_nodes: DevNodes, claim: Callable[[str], None]
) -> None:
    """After ``celery purge`` no call is kept out by a job that is gone."""
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
    """KEY is a pattern here."""
    claim("invoice:1")
    claim("report:1")

    run = project.redlock("release", "invoice:*", "--claims", "--yes")

    assert (run.code, run.err) == (0, "")
    assert left(three_nodes) == {"report:1"}


def test_release_claims_without_a_yes_does_nothing(
    project: Project, three_nodes: DevNodes, claim: Callable[[str], None]
) -> None:
    """No is no, and so is nobody."""
    claim("invoice:1")

    for typed in ("n\n", ""):
        run = project.redlock("release", "--claims", typed=typed)
        assert run.code == 1
        assert "Nothing was done." in run.err
    assert left(three_nodes) == {"invoice:1"}


def test_release_claims_dry_run_shows_and_does_nothing(
    project: Project, three_nodes: DevNodes, claim: Callable[[str], None]
) -> None:
    """What is for programs has the job, and no proof of ownership beyond it."""
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
    """A claim that changed hands while the question stood is not released."""
    claim("invoice:1")

    with project.start("release", "--claims") as asking:
        asking.until_said("Release 1 claim?")
        claims.free("invoice:1", "job-of-invoice:1")
        job = Holder("", task="proj.send_invoice", task_id="successor")
        taken = claims.take("invoice:1", job, at_lock=False, at_cooldown=False)
        assert taken is None
        run = asking.type("y\n")

    assert run.code == 1
    assert "Released 0 claims." in run.out
    assert left(three_nodes) == {"invoice:1"}


def test_release_claims_of_nothing_exits_with_1(project: Project) -> None:
    """There is nothing to release, and nothing is asked."""
    run = project.redlock("release", "nobodys", "--claims")

    assert (run.code, run.out) == (1, "There is no claim for nobodys.\n")


def test_release_claims_tells_which_nodes_it_could_not_reach(
    project: Project, three_nodes: DevNodes, claim: Callable[[str], None]
) -> None:
    """It does what can be done, and names the rest."""
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
    """That nothing was seen does not mean that nothing is there."""
    for node in three_nodes.nodes:
        node.kill()

    run = project.redlock("release", "--claims", "--yes")

    assert run.code == 3
    assert "refused the connection" in run.err


def test_release_cool_downs_lets_calls_run_again(
    project: Project, three_nodes: DevNodes, claims: Claims, claim: Callable[..., None]
) -> None:
    """Whoever cannot wait for the end of a ``unique_for``; claims stay."""
    claim("invoice:1")
    done = Holder("", task="proj.send_invoice", task_id="done")
    claims.cool_down("invoice:1", done, HOUR)
    assert claims.cooling("invoice:1", "another") is not None

    run = project.redlock("release", "invoice:1", "--cool-downs", "--yes")

    assert run.code == 0
    assert "Released 1 cool-down." in run.out
    assert claims.cooling("invoice:1", "another") is None
    assert left(three_nodes) == {"invoice:1"}


@pytest.mark.parametrize("words", [(), ("k", "--claims", "--cool-downs")])
def test_release_of_nothing_said_or_of_two_things_is_refused(
    project: Project, words: tuple[str, ...]
) -> None:
    """A lock is released by its key only: never all of them by mistake."""
    run = project.redlock("release", "--yes", *words)

    assert run.code == 2
    assert "Missing argument 'KEY'" in run.err or "one at a time" in run.err
