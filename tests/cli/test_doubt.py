"""Commands where nodes cannot tell what is held: the words, and the exit code."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.beat import election_key
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.limits import Limit
from celery_redlock.records.standbys import StandbyList
from tests.cli.app import new_app
from tests.cli.project import Project, Typing, claim
from tests.conftest import with_long
from tests.nodes.support import locks, until

REASONS = {
    "down": "refused the connection",
    "restarted": ": it may have forgotten locks",
    "other": "is set up differently",
    "denied": "NOPERM",
    "unreadable": "NOPERM",
}
OF_MOST = {
    **REASONS,
    "restarted": ": a majority of the nodes may have forgotten locks",
}
ways = pytest.mark.parametrize("way", with_long(REASONS, "other"))
ways_of_one_node = pytest.mark.parametrize("way", ["down", "restarted", "denied"])
ways_of_asking = pytest.mark.parametrize("way", ["paused", "no-scripts"])
OTHER: dict[str, Any] = {"redlock_max_ttl": 120.0}


def settings_of(way: str) -> dict[str, Any]:
    """Return the settings of the operator."""
    return OTHER if way == "other" else {}


def doubtful(project: Project, way: str, *nodes: int) -> dict[str, Any]:
    """Put these nodes in a state in which they cannot tell; return the settings."""
    for index in nodes:
        if way == "down":
            project.nodes[index].kill()
        elif way == "restarted":
            project.nodes[index].restart()
        elif way == "denied":
            rights = ("resetkeys", "~elsewhere:*")
            project.nodes[index].command("ACL", "SETUSER", "default", *rights)
        elif way == "unreadable":
            project.nodes[index].command("ACL", "SETUSER", "default", "-hmget")
        elif way == "no-scripts":
            project.nodes[index].command("ACL", "SETUSER", "default", "-evalsha")
        elif way == "paused":
            project.nodes[index].command("CLIENT", "PAUSE", "60000", "WRITE")
    return settings_of(way)


@ways
@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("show", "free"),
        ("release", "free", "--yes"),
        ("release", "--claims", "--yes"),
        ("leader",),
    ],
    ids="-".join,
)
def test_command_that_cannot_tell_says_so_and_exits_with_3(
    project: Project, words: tuple[str, ...], way: str
) -> None:
    """A majority that is down, forgot, or denies its keys: nothing is called free."""
    settings = doubtful(project, way, 0, 1)

    run = project.redlock(*words, **settings)

    assert run.code == 3
    assert "annot be told" in run.out or "Too few nodes" in run.out
    assert "0 locks held" not in run.out
    assert "not held" not in run.out
    assert run.out.count(OF_MOST[way]) >= 2


@ways_of_asking
@pytest.mark.parametrize(
    "words",
    [("show", "free"), ("release", "free", "--yes"), ("leader",)],
    ids="-".join,
)
def test_node_that_is_read_and_does_not_answer_about_a_lock_is_named(
    project: Project, words: tuple[str, ...], way: str
) -> None:
    """Its keys can be read, but a request by a script gets no vote of it."""
    doubtful(project, way, 0, 1)

    run = project.redlock(*words)

    reason = {"paused": "did not answer", "no-scripts": "NOPERM"}[way]
    assert run.code == 3
    assert run.out.count(reason) == 2


@pytest.mark.parametrize(
    ("words", "said", "known"),
    [
        (
            ("show", "k"),
            "It cannot be told whether there were releases by operators: ",
            "released_known",
        ),
        (("leader",), "It cannot be told whether a beat stands by: ", "standbys_known"),
    ],
    ids=["show", "leader"],
)
@pytest.mark.parametrize("number", [1, 2])
def test_list_that_too_few_nodes_have_told_is_not_called_empty(
    project: Project, words: tuple[str, ...], said: str, known: str, number: int
) -> None:
    """A lock can be read, and of a majority the list beside it cannot."""
    for node in project.nodes[:number]:
        node.command("ACL", "SETUSER", "default", "-hgetall")

    run, document = project.redlock(*words), project.redlock(*words, "--json").document

    is_known = number == 1
    assert run.code == 1
    assert (f"{said}too few nodes can tell." in run.out) is not is_known
    assert document[known] is is_known
    assert "No beat stands by." not in run.out or is_known


def test_standbys_that_the_nodes_may_have_forgotten_are_not_called_none(
    project: Project,
) -> None:
    """A majority restarted empty: a beat may stand by, and another may lead."""
    doubtful(project, "restarted", 0, 1)

    run, document = project.redlock("leader"), project.redlock("leader", "--json")

    assert "It cannot be told whether a beat stands by" in run.out
    assert "No beat stands by" not in run.out
    assert document.document["standbys_known"] is False


def test_metrics_do_not_count_beats_that_the_nodes_may_have_forgotten(
    project: Project,
) -> None:
    """A scrape has seen a standby. Then a majority restarted empty."""
    collector = pytest.importorskip("celery_redlock.metrics.collector")
    app = new_app({"redlock_nodes": project.urls})
    gauges = collector.StateCollector(app, project.service)
    StandbyList(project.service, election_key(app), 60.0).enter("b" * 32, Holder.here())

    def seen() -> dict[str, list[float]]:
        found = {gauge.name: gauge.samples for gauge in gauges.collect()}
        names = [name for name in ("leaders", "standbys") if f"redlock_{name}" in found]
        return {name: [it.value for it in found[f"redlock_{name}"]] for name in names}

    until(lambda: seen() == {"leaders": [0.0], "standbys": [1.0]}, what="the standby")
    doubtful(project, "restarted", 0, 1)

    assert seen() == {}


@ways_of_one_node
def test_minority_that_cannot_tell_is_named(project: Project, way: str) -> None:
    """The majority is certain: the list is complete, and a free lock is free."""
    project.hold("held")
    doubtful(project, way, 0)

    listed, held, free = (
        project.redlock(*words) for words in (("ls",), ("show", "held"), ("show", "x"))
    )

    assert (listed.code, held.code, free.code) == (0, 0, 1)
    assert "1 lock held, as seen on 2 of 3 nodes." in listed.out
    assert REASONS[way] in listed.out
    assert REASONS[way] in held.out
    assert "x is not held." in free.out


@ways_of_one_node
def test_lock_that_needs_a_doubtful_vote_may_be_held(
    project: Project, way: str
) -> None:
    """One of three names the holder, one denies it, one cannot tell."""
    project.steal("k", 1)
    doubtful(project, way, 0)

    listed, shown = project.redlock("ls"), project.redlock("show", "k")
    document = project.redlock("ls", "--json").document

    assert (listed.code, shown.code) == (0, 3)
    assert "0 locks held, as seen on 2 of 3 nodes." in listed.out
    assert "1 lock may be held: that" in listed.out
    assert "proj.other" in listed.out
    assert "It cannot be told whether k is held" in shown.out
    assert [lock["held"] for lock in document["locks"]] == [None]
    assert document["known"] is True
    assert REASONS[way] in document["doubts"][project.label(0)]


@pytest.mark.parametrize("way", ["replica", "two names"])
def test_copy_of_a_lock_is_no_second_vote(project: Project, way: str) -> None:
    """One master has it. A replica repeats it, as the second name of a server does."""
    project.steal("k", 0)
    first, second = project.nodes[:2]
    urls = project.urls
    if way == "replica":
        second.command("REPLICAOF", "127.0.0.1", first.port)
        until(lambda: locks([second], "k"))
    else:
        urls = [urls[0], urls[0].replace("127.0.0.1", "localhost"), urls[2]]

    listed, shown = (
        project.redlock(*words, redlock_nodes=urls)
        for words in (("ls",), ("show", "k"))
    )

    assert "2/3" in listed.out
    assert "1 lock may be held: that" in listed.out
    assert "1 lock held" not in listed.out
    assert (shown.code, shown.out.partition("\n")[0]) == (
        3,
        "It cannot be told whether k is held: too few nodes can tell.",
    )


def test_lock_on_a_part_of_a_deployment_may_be_held(project: Project) -> None:
    """`--node` names one of three nodes, which has it without a majority."""
    project.steal("k", 0)
    node = ("--node", project.urls[0])

    listed, shown = (
        project.redlock(*words, *node) for words in (("ls",), ("show", "k"))
    )

    assert (listed.code, shown.code) == (3, 3)
    assert "1 lock may be held: that" in listed.out
    assert "for certain" not in listed.out
    assert "It cannot be told whether k is held: the node cannot tell." in shown.out


@ways
@pytest.mark.parametrize("what", ["--claims", "--cool-downs"])
def test_document_says_that_claims_are_not_known(
    project: Project, what: str, way: str
) -> None:
    """An empty list alone would say that there is none. No node at all: the same."""
    settings = doubtful(project, way, 0, 1, 2)

    run = project.redlock("release", what, "--yes", "--json", **settings)

    assert run.code == 3
    assert run.document["found"] == []
    assert run.document["known"] is False
    assert set(run.document["doubts"]) == {project.label(n) for n in range(3)}


@pytest.mark.parametrize("what", ["k", "--claims"])
def test_dry_run_that_cannot_tell_exits_with_3(project: Project, what: str) -> None:
    """It shows what it has seen, as without a doubt, and is no success."""
    project.hold("k")
    claim(project)
    project.kill(0, 1)

    run = project.redlock("release", what, "--dry-run")

    assert run.code == 3
    assert "on 1 of 3 nodes" in run.out or "1/3" in run.out
    assert "annot be told" in run.out
    assert "Nothing was done." in run.out


def test_other_settings_come_with_the_difference(project: Project) -> None:
    """The operator reads what to set. A holder that all nodes name is shown."""
    project.hold("k")

    listed, shown, taken = (
        project.redlock(*words, **OTHER)
        for words in (("ls",), ("show", "k"), ("release", "k", "--yes"))
    )

    for run in (listed, shown):
        assert "at epoch 1 with max_ttl 60 s; this client has max_ttl 120 s" in run.out
    assert (listed.code, shown.code, taken.code) == (3, 0, 3)
    assert "1 lock held for certain; there may be others." in listed.out
    assert (
        "Nothing was released. The nodes are at epoch 1 with max_ttl 60 s" in taken.err
    )
    assert len(locks(project.nodes, "k")) == 3


def test_release_that_missed_a_majority_exits_with_3(project: Project) -> None:
    """The lock may be held on the nodes that were not reached."""
    project.hold("k")
    project.kill(0, 1)

    run = project.redlock("release", "k", "--yes")

    assert run.code == 3
    assert "The lock k may still be held: too few nodes released it." in run.out


def test_lock_without_a_ttl_never_ends(project: Project) -> None:
    """It is not said to end in 0.0 s."""
    lease = project.hold("k")
    for node in project.nodes:
        node.command("PERSIST", f"redlock:lock:{lease.key}")

    listed, shown, asked = (
        project.redlock(*words)
        for words in (("ls",), ("show", "k"), ("release", "k", "--dry-run"))
    )
    document = project.redlock("show", "k", "--json").document

    assert "never ends" in listed.out
    assert "expires  never: it has no ttl" in shown.out
    assert "It never expires: it has no ttl." in asked.out
    assert not [run for run in (listed, shown, asked) if "0.0 s" in run.out]
    assert (document["held"], document["ttl_left"]) == (True, None)


def test_lead_without_a_ttl_never_ends(project: Project) -> None:
    """It is not said to expire, or to be renewed."""
    key = "beat:proj"
    project.hold(key)
    for node in project.nodes:
        node.command("PERSIST", f"redlock:lock:{key}")

    shown = project.redlock("leader")

    assert f"{key} is led by" in shown.out
    assert "expires  never: it has no ttl" in shown.out


def test_lock_without_a_ttl_stays_on_a_node_that_does_not_release_it(
    project: Project,
) -> None:
    """The end of no ttl is told to be waited for."""
    project.hold("k")
    for node in project.nodes:
        node.command("PERSIST", "redlock:lock:k")

    answer = Typing(lambda: project.kill(0), "y\n")
    run = project.redlock("release", "k", typed=answer)

    assert run.code == 0
    assert "Released k on 2 of 3 nodes" in run.out
    kept = "If it has the lock, the lock stays there: it has no ttl."
    assert f"refused the connection. {kept}" in run.out


def test_start_without_a_ttl_never_ends(project: Project) -> None:
    """No other one becomes possible in an infinite time."""
    project.hold("mail", limits=(Limit("mail", 1), Limit("mail", 1, 60.0)))
    for node in project.nodes:
        node.command("PERSIST", "redlock:lock:mail@@1")

    run = project.redlock("show", "mail")

    assert "are taken. Another one is possible when one is released." in run.out
    assert "inf s" not in run.out


def test_permits_that_may_be_held_are_not_counted_as_free(project: Project) -> None:
    """One node of three names them, and the others cannot tell."""
    for limits in [(Limit("imports", 3), Limit("imports", 4, 60.0))] * 3:
        project.hold("imports", limits=limits)
    project.kill(0, 1)

    run = project.redlock("show", "imports")
    asked = project.redlock("release", "imports", "--dry-run")

    assert run.code == 3
    others = "imports##2, imports##3"
    assert f"Other permits of imports may be in use, and stay: {others}." in asked.out
    assert "imports: 0 of 3 permits in use for certain." in run.out
    assert "imports: 0 of 4 starts in 60 s are taken for certain." in run.out


@pytest.mark.parametrize("is_held", [True, False])
def test_other_permit_that_may_be_held_is_not_said_to_be_in_use_or_free(
    project: Project, is_held: bool
) -> None:
    """Of the first permit, a majority can tell. One node of three names the second."""
    for limits in [(Limit("imports", 2),)] * 2:
        project.hold("imports", limits=limits)
    project.nodes[1].command("DEL", "redlock:lock:imports##2")
    if not is_held:
        for node in project.nodes:
            node.command("DEL", "redlock:lock:imports")
    project.kill(0)

    asked = project.redlock("release", "imports", "--dry-run")
    shown = project.redlock("show", "imports")

    assert "Other permits of imports may be in use, and stay: imports##2." in asked.out
    assert f"imports: {int(is_held)} of 2 permits in use for certain." in shown.out
    assert shown.code == (0 if is_held else 3)


@pytest.mark.parametrize("way", with_long(REASONS, *[*REASONS][1:]))
@pytest.mark.long
def test_top_shows_no_numbers_that_it_cannot_know(project: Project, way: str) -> None:
    """Neither a number of locks nor a rate, until a majority can tell again."""
    project.hold("k")
    settings = doubtful(project, way, 0, 1)
    project.change(**settings)

    with project.start("top", "--every", "0.05", "--json") as top:
        document = top.document()
        top.interrupt()
    shown = project.on_a_terminal("top", "--every", "0.1", until="Too few nodes")

    assert document["known"] is False
    assert [document[name] for name in ("held", "taken_per_second")] == [None, None]
    assert document["freed_per_second"] is None
    assert "Too few nodes can tell which locks are held: " in shown
    assert "taken/s" not in shown


@pytest.mark.long
def test_top_counts_no_outage_as_releases(project: Project) -> None:
    """Locks of which nodes can no longer tell were not released."""
    project.hold("k")
    with project.start("top", "--every", "0.05", "--json") as top:
        while top.document()["held"] != 1:
            pass
        project.kill(0, 1)
        while top.document()["known"]:
            pass
        for index in (0, 1):
            project.nodes[index].restart()
        document = top.document()
        while document["nodes"][1]["state"] == "refused the connection":
            document = top.document()
        top.interrupt()

    assert document["known"] is False
    assert document["freed_per_second"] is None


@pytest.mark.parametrize("way", ["down", "denied"])
@pytest.mark.parametrize("number", [2, 3])
def test_leaked_without_a_majority_cannot_tell(
    project: Project, number: int, way: str
) -> None:
    """Nodes that were not read may have keys without a ttl."""
    doubtful(project, way, *range(number))

    run = project.redlock("leaked")

    assert run.code == 3
    assert "It cannot be told whether there are keys without a ttl" in run.out
    assert run.out.count(REASONS[way]) == number
