"""``redlock show KEY``: the holder of a lock, and the answer of each node."""

from __future__ import annotations

from celery_redlock.locks.limits import Limit
from tests.cli.project import Project


def test_show_names_the_holder(project: Project) -> None:
    """It shows the holder, fence, votes, and the answer of each node."""
    lease = project.hold("invoice:42", started=1_700_000_000.0)

    run = project.redlock("show", "invoice:42")

    assert run.code == 0
    assert run.out.startswith("invoice:42 is held.")
    words = ("proj.send_invoice", "worker-1, pid 4711", "2023-11-14 22:13:20 UTC")
    assert all(word in run.out for word in (*words, str(lease.fence), "3 of 3 nodes"))
    assert run.out.count("held, ") == 3


def test_show_names_the_keys_that_were_taken_together(project: Project) -> None:
    """So an operator knows what a release releases."""
    project.hold(["account:1", "account:2"])

    run = project.redlock("show", "account:2")

    assert run.out.startswith("account:2 is held.")
    assert "account:1 and account:2" in run.out


def test_show_of_a_free_key_exits_with_1(project: Project) -> None:
    """A script sees from the exit code that the lock is free."""
    run = project.redlock("show", "free", "--json")

    assert run.code == 1
    assert (run.document["held"], run.document["holder"]) == (False, None)


def test_show_names_another_holder_on_one_node(project: Project) -> None:
    """The line of the node names the other holder."""
    project.hold("k")
    project.steal("k", 0)

    run = project.redlock("show", "k")

    assert "held by proj.other[other-id] on worker-9 (pid 99)" in run.out
    assert "2 of 3 nodes" in run.out


def test_key_is_found_without_a_look_through_the_database(project: Project) -> None:
    """A Redis that is shared may have millions of other keys, and a minute of SCAN."""

    def looks() -> list[object]:
        told = [node.command("INFO", "commandstats") for node in project.nodes]
        return [stats.get("cmdstat_scan", {}).get("calls") for stats in told]

    project.hold("invoice:42")
    before = looks()

    assert project.redlock("show", "invoice:42").code == 0
    assert project.redlock("release", "invoice:42", "--yes").code == 0

    assert looks() == before


# -- permits ---------------------------------------------------------------------


def test_show_lists_all_permits_of_a_key(project: Project) -> None:
    """Also if the first of them, the lock of the key, is free."""
    limits = (Limit("imports", 2), Limit("imports", 3, 60.0))
    leases = [project.hold("imports", limits=limits) for _ in range(2)]
    first = min(leases, key=lambda lease: lease.key)
    project.service.release(first)

    run = project.redlock("show", "imports")
    document = project.redlock("show", "imports", "--json").document

    assert run.code == 0
    assert "The first permit of imports is not held." in run.out
    assert "imports##2 (permit 2 of 2)" in run.out
    assert "imports: 1 of 2 permits in use." in run.out
    assert "imports: 2 of 3 starts in 60 s are taken." in run.out
    at_once, starts = document["limits"]
    (permit,) = at_once["permits"]
    assert (permit["key"], permit["permit"], permit["kept"]) == ("imports##2", 2, False)
    assert len(starts["permits"]) == starts["in_use"] == 2
    assert all(permit["kept"] for permit in starts["permits"])


def test_show_of_a_permit_says_of_which_limit_it_is(project: Project) -> None:
    """A permit for a start is kept, and not held: its run may have ended."""
    limits = (Limit("mail", 1), Limit("mail", 1, 60.0))
    project.service.release(project.hold("mail", limits=limits))

    kept, key = project.redlock("show", "mail@@1"), project.redlock("show", "mail")

    assert "mail@@1 is kept: it is a permit for a start." in kept.out
    assert "limit    start 1 of 1 in 60 s" in kept.out
    assert key.code == 1
    assert "mail: 1 of 1 starts in 60 s are taken. The next one is" in key.out


def test_show_of_a_plain_key_says_nothing_of_permits(project: Project) -> None:
    """Keys that look like permits of it are keys of their own."""
    for key in ("pr", "pr#17", "pr@1"):
        project.hold(key)

    run = project.redlock("show", "pr")
    document = project.redlock("show", "pr", "--json").document

    assert "pr is held." in run.out
    assert "pr#17" not in run.out
    assert document["limits"] == []
