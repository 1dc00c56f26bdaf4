"""One node decides alone: no text counts it, or speaks of a majority or other nodes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.election import Elector
from celery_redlock.line.claims import Claims
from celery_redlock.locks.lease import Holder
from celery_redlock.operations.release import Operator, ask, release
from tests.cli.project import FOREIGN, Project, Typing
from tests.nodes.support import BRIEF, MAX_TTL, SHORT, client, until

PLURAL = re.compile(r"\d+ of 1\b(?! start)|\b1 nodes|majority|(other|enough|All) nodes")
ALONE = re.compile(r"too few|\bnodes\b|majority|of 1\b", re.IGNORECASE)


def test_commands_speak_of_the_node(start_project: Callable[..., Project]) -> None:
    """With a lock, a claim, a leader and a release by an operator."""
    project = start_project(1)
    project.hold("invoice:42")
    job = Holder("", task="proj.send_invoice", task_id="job")
    claims = Claims(project.service)
    claims.take("invoice:7", job, at_lock=False, at_cooldown=False)
    existing = claims.queued("invoice:7")
    Elector(project.service, "beat:proj", name="celery beat").campaign()

    said = [
        project.redlock(*words)
        for words in (
            ("ls",),
            ("show", "invoice:42"),
            ("explain", "proj.send_invoice", "--args", "[42]"),
            ("leader",),
            ("doctor",),
            ("doctor", "--wait", "0"),
            ("leaked",),
            ("release", "invoice:42", "--yes"),
            ("release", "--claims", "--dry-run"),
            ("init", "--yes"),
        )
    ]
    texts = [str(existing), *(run.out + run.err for run in said)]

    assert [text for text in texts if PLURAL.search(text)] == []
    assert "2 locks held, as seen on the node." in texts[1]
    assert "The same call 'invoice:42' runs as proj.send_invoice" in texts[3]
    assert "Released invoice:42, held by proj." in texts[8]


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("show", "k"),
        ("explain", "proj.send_invoice", "--args", "[42]"),
        ("leader",),
        ("doctor", "--wait", "0"),
        ("leaked",),
        ("release", "k", "--yes"),
        ("release", "--claims", "--yes"),
    ],
    ids="-".join,
)
def test_command_speaks_of_the_node_that_does_not_answer(
    start_project: Callable[..., Project], words: tuple[str, ...]
) -> None:
    """There are no others, of which too few would answer."""
    project = start_project(1)
    project.kill(0)

    run = project.redlock(*words)

    assert run.code == 3
    assert not ALONE.search(run.out + run.err), run.out + run.err


def test_node_that_only_waits_to_be_asked_is_not_said_to_wait_for_others(
    start_project: Callable[..., Project],
) -> None:
    """Its quarantine is over. Nodes that --node names are not asked for their votes."""
    settings = {f"redlock_{name}": value for name, value in SHORT.items()}
    project = start_project(1, settings, max_ttl=MAX_TTL)
    (node,) = project.nodes
    node.restart()
    with client(project.urls, **SHORT) as worker:
        worker.check()  # its quarantine begins
    named = ("--node", *project.urls)

    def state() -> str:
        document = project.redlock("doctor", "--json", *named).document
        return str(document["nodes"][0]["state"])

    until(lambda: "in quarantine" not in state(), what="the end of its quarantine")
    run = project.redlock("doctor", *named)

    assert "votes as soon as a client asks" in run.out
    assert "does not vote before a client asks it for a lock." in run.out
    assert "It votes with the next lock." in run.out
    assert not PLURAL.search(run.out), run.out


def test_release_of_nothing_is_told_as_one(
    start_project: Callable[..., Project],
) -> None:
    """The log of the page and of the admin has no release that was none."""
    project = start_project(1)

    asked = ask(project.service, "k")
    done = release(project.service, asked, ["by hand"], Operator("alice", "a test"))

    assert done.fact == " on no node, held by another program."


def test_release_that_the_node_did_not_get_speaks_of_it(
    start_project: Callable[..., Project],
) -> None:
    """It has died during the question."""
    project = start_project(1)
    project.hold("k")

    answer = Typing(lambda: project.kill(0), "y\n")
    run = project.redlock("release", "k", typed=answer)

    assert run.code == 3
    assert "may still be held: the node did not release it." in run.out
    assert "Release it again when it can." in run.out


def test_release_is_logged_without_what_controls_a_terminal(
    start_project: Callable[..., Project],
) -> None:
    """The task of a holder is a text that a node tells."""
    project = start_project(1)
    value = FOREIGN.replace("proj.other", "proj\x1b[2J")
    project.nodes[0].command("SET", "redlock:lock:k", value)

    asked = ask(project.service, "k")
    done = release(project.service, asked, [value], Operator("alice", "a test"))

    assert done.number == 1
    assert done.fact.isprintable()


def test_reconfigure_speaks_of_the_node(
    start_project: Callable[..., Project], start_nodes: Callable[..., DevNodes]
) -> None:
    """One node becomes another one, and that move is taken back too late."""
    brief = {"redlock_max_ttl": BRIEF, "redlock_ttl": BRIEF}
    project = start_project(1, brief, max_ttl=BRIEF)
    (url,) = start_nodes(1, max_ttl=BRIEF, initialize=False).urls

    moved = project.redlock("reconfigure", "--to", url, "--yes")
    again = project.redlock("reconfigure", "--to", url, "--yes", "--abort")

    assert moved.code == 0, moved.err
    texts = [run.out + run.err for run in (moved, again)]
    assert [text for text in texts if PLURAL.search(text)] == []
    assert "The node is closed: nothing is granted" in moved.out
    assert "The node votes for the new configuration" in moved.out
    assert "The node votes for the new configuration already." in again.err


def test_log_of_a_restart_speaks_of_the_node(
    start_nodes: Callable[..., DevNodes],
    key: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There were no other nodes that could have known a fence."""
    nodes = start_nodes(1, max_ttl=MAX_TTL)
    caplog.set_level(logging.INFO, "celery_redlock")

    with client(nodes, **SHORT) as redlock:
        redlock.release(redlock.acquire(key, wait=20))
        nodes.nodes[0].restart()
        until(lambda: redlock.check().has_quorum, what="its vote")
        redlock.release(redlock.acquire(key, wait=20))

    assert not PLURAL.search(caplog.text), caplog.text
    assert "Its next fences are greater than its own time" in caplog.text
