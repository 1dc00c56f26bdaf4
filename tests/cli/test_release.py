"""``redlock release``: what was shown is released, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import Holder
from celery_redlock.core.records.claims import Claims
from tests.cli.project import FOREIGN
from tests.nodes.support import locks

if TYPE_CHECKING:
    from tests.cli.project import Project

KEY = "redlock:lock:k"
HOUR = 3600.0


def claim(project: Project, key: str = "invoice:1", job: str = "job") -> None:
    """Claim a call, as a publisher does."""
    claims = Claims(project.service)
    holder = Holder("", task="proj.send_invoice", task_id=job, host="web")
    assert claims.take(key, holder, at_lock=False, at_cooldown=False) is None
    claims.keep(key, job, HOUR)


def claimed(project: Project) -> set[str]:
    """Return the calls with a claim on any node."""
    head = "redlock:claim:"
    names = [node.command("KEYS", f"{head}*") for node in project.nodes]
    return {name.removeprefix(head) for found in names for name in found}


# -- a lock ----------------------------------------------------------------------


def test_release_asks_and_releases_after_a_yes(project: Project) -> None:
    """The holder and the risk are shown before anything is done."""
    project.hold("k")

    run = project.redlock("release", "k", typed="y\n")

    assert run.code == 0
    assert "held by proj.send_invoice[id-of-k] on worker-1 (pid 4711)" in run.out
    assert "two can run" in run.out
    assert "Release this lock?" in run.err
    assert "Released on 3 of 3 nodes." in run.out
    assert not locks(project.nodes, "k")


@pytest.mark.parametrize("typed", ["n\n", "\n", ""], ids=["no", "enter", "closed"])
@pytest.mark.parametrize("what", ["k", "--claims"])
def test_release_without_a_yes_does_nothing(
    project: Project, what: str, typed: str
) -> None:
    """After no, a bare Enter or closed stdin the lock and the claim stay."""
    project.hold("k")
    claim(project)

    run = project.redlock("release", what, typed=typed)

    assert run.code == 1
    assert "Nothing was done." in run.err
    assert len(locks(project.nodes, "k")) == 3
    assert claimed(project) == {"invoice:1"}


def test_release_dry_run_shows_and_does_nothing(project: Project) -> None:
    """It shows the lock, and neither asks nor releases."""
    project.hold("k")

    run = project.redlock("release", "k", "--dry-run", "--json")

    assert run.code == 0
    assert run.document["holders"][0]["task_id"] == "id-of-k"
    assert run.document["released"] == {}
    assert len(locks(project.nodes, "k")) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--yes",), "free is not held."), (("--claims",), "There is no claim for free.")],
)
def test_release_of_a_free_key_exits_with_1(
    project: Project, words: tuple[str, ...], said: str
) -> None:
    """There is nothing to release, and nothing is asked."""
    run = project.redlock("release", "free", *words)

    assert (run.code, run.out) == (1, f"{said}\n")


def test_release_leaves_a_successor_alone(project: Project) -> None:
    """A lock that another client acquires during the question is not released."""
    project.hold("k")

    with project.start("release", "k") as asking:
        asking.wait_for("Release this lock?")
        project.steal("k", 0, 1, 2)
        run = asking.type("y\n")

    assert run.code == 1
    assert "expired or has another holder" in run.out
    assert [node.command("GET", KEY) for node in project.nodes] == [FOREIGN] * 3


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("k", ("Released on 2 of 3 nodes.", "until its ttl has ended")),
        ("--claims", ("Released 1 claim.", "2/3")),
    ],
)
def test_release_names_nodes_that_it_could_not_reach(
    project: Project, what: str, said: tuple[str, ...]
) -> None:
    """It releases on the other nodes; a lock stays on a node that is down."""
    project.hold("k")
    claim(project)
    project.kill(0)

    run = project.redlock("release", what, "--yes")

    assert run.code == 0
    assert all(words in run.out for words in (*said, "refused the connection"))


def test_release_deletes_a_lock_on_a_minority(project: Project) -> None:
    """A lock that is left on one node can be released."""
    project.steal("k", 0)

    run = project.redlock("release", "k", "--yes")

    assert (
        "held by proj.other[other-id] on worker-9 (pid 99), on 1 of 3 nodes" in run.out
    )
    assert "Released on 1 of 3 nodes." in run.out
    assert not locks(project.nodes, "k")


def test_release_says_that_a_value_is_not_ours(project: Project) -> None:
    """A value that another program wrote is named as such before it is deleted."""
    for node in project.nodes:
        node.command("SET", KEY, "by hand")

    run = project.redlock("release", "k", "--yes")

    assert "k has a value of another program, on 3 of 3 nodes." in run.out
    assert not locks(project.nodes, "k")


# -- claims and cool-downs ---------------------------------------------------------


def test_release_claims_shows_asks_and_releases_all(project: Project) -> None:
    """After ``celery purge`` the deleted jobs keep no call from being published."""
    claim(project, job="the-first")
    claim(project, "invoice:2")

    run = project.redlock("release", "--claims", typed="y\n")

    assert run.code == 0
    assert "the-first" in run.out
    assert "3/3" in run.out
    assert "runs all the same" in run.out
    assert "Release 2 claims?" in run.err
    assert "Released 2 claims." in run.out
    assert claimed(project) == set()


def test_release_claims_of_a_pattern_leaves_the_others(project: Project) -> None:
    """With ``--claims``, KEY is a pattern."""
    claim(project)
    claim(project, "report:1")

    run = project.redlock("release", "invoice:*", "--claims", "--yes")

    assert (run.code, run.err) == (0, "")
    assert claimed(project) == {"report:1"}


def test_release_claims_dry_run_shows_and_does_nothing(project: Project) -> None:
    """A program gets the job of each claim, and no token."""
    claim(project)

    run = project.redlock("release", "--claims", "--dry-run", "--json")

    assert run.code == 0
    (found,) = run.document["found"]
    assert (found["key"], found["task_id"]) == ("invoice:1", "job")
    assert 3500 < found["left"] <= HOUR
    assert (found["nodes"], run.document["released"]) == (3, 0)
    assert "token" not in found
    assert claimed(project) == {"invoice:1"}


def test_release_claims_leaves_a_successor_alone(project: Project) -> None:
    """A claim that another job takes during the question is not released."""
    claim(project)

    with project.start("release", "--claims") as asking:
        asking.wait_for("Release 1 claim?")
        Claims(project.service).release("invoice:1", "job")
        claim(project, job="successor")
        run = asking.type("y\n")

    assert run.code == 1
    assert "Released 0 claims." in run.out
    assert claimed(project) == {"invoice:1"}


def test_release_claims_without_any_node_is_an_error(project: Project) -> None:
    """Unreachable nodes may have claims: it exits with 3."""
    project.kill(0, 1, 2)

    run = project.redlock("release", "--claims", "--yes")

    assert run.code == 3
    assert "refused the connection" in run.err


def test_release_cool_downs_lets_calls_run_again(project: Project) -> None:
    """It ends the ``unique_for`` of a call. Claims stay."""
    claim(project)
    claims = Claims(project.service)
    done = Holder("", task="proj.send_invoice", task_id="done")
    claims.cool_down("invoice:1", done, HOUR)
    assert claims.succeeded("invoice:1", "another") is not None

    run = project.redlock("release", "invoice:1", "--cool-downs", "--yes")

    assert run.code == 0
    assert "Released 1 cool-down." in run.out
    assert claims.succeeded("invoice:1", "another") is None
    assert claimed(project) == {"invoice:1"}


@pytest.mark.parametrize("words", [(), ("k", "--claims", "--cool-downs")])
def test_release_without_a_key_or_of_two_kinds_is_refused(
    project: Project, words: tuple[str, ...]
) -> None:
    """A lock is released by its key only: never all locks by mistake."""
    run = project.redlock("release", "--yes", *words)

    assert run.code == 2
    assert "Missing argument 'KEY'" in run.err or "not both" in run.err
