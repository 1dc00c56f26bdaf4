"""``redlock release``: what was shown is released, and nothing else."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from celery_redlock.line.claims import Claims
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.limits import Limit
from celery_redlock.operations.release import ask
from tests.cli.app import new_app
from tests.cli.project import FOREIGN, HOUR, Project, Typing, claim, run_here
from tests.nodes.support import PATIENT, client, locks
from tests.unit.test_kill_holder import REPLIES, Control

KEY = "redlock:lock:k"


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
    assert "two may run" in run.out
    assert "Release this lock?" in run.err
    assert "Released k on 3 of 3 nodes, held by proj.send" in run.out
    assert not locks(project.nodes, "k")


def test_release_of_one_key_releases_those_taken_with_it(project: Project) -> None:
    """The operator is told before. `show` lists the release for each key."""
    project.hold(["account:1", "account:2"])

    run = project.redlock("release", "account:2", typed="y\n")

    assert run.code == 0
    assert "It was taken together with account:1: all are released." in run.out
    assert not locks(project.nodes, "account")
    for key in ("account:1", "account:2"):
        document = project.redlock("show", key, "--json").document
        assert len(document["released"]) == 1


def waiting(project: Project, key: str) -> list[list[str]]:
    """Return who waits in the queue of this key, on each node."""
    name = f"redlock:line:{key}"
    return [node.command("ZRANGE", name, 0, -1) for node in project.nodes]


def test_release_of_a_permit_leaves_the_others(project: Project) -> None:
    """The operator names one. A waiter for the key is woken: no queue has its name."""
    limits = (Limit("imports", 3),)
    for _ in range(3):
        project.hold("imports", limits=limits)
    for node in project.nodes:
        for key in ("imports", "imports##2", "other"):
            node.command("ZADD", f"redlock:line:{key}", 1, f"waiter of {key}:1")

    run = project.redlock("release", "imports##2", typed="y\n")
    document = project.redlock("show", "imports", "--json").document

    assert run.code == 0
    assert "It is permit 2 of 3 of imports." in run.out
    assert (
        "one more than the limit may run at the same time after the release" in run.out
    )
    assert not locks(project.nodes, "imports##2")
    assert len(locks(project.nodes, "imports")) == 6
    assert waiting(project, "imports") == [[]] * 3
    assert waiting(project, "imports##2") == [["waiter of imports##2:1"]] * 3
    assert waiting(project, "other") == [["waiter of other:1"]] * 3
    assert [one["key"] for one in document["released"]] == ["imports##2"]


@pytest.mark.parametrize("is_held", [True, False])
def test_release_of_a_limited_key_names_the_other_permits(
    project: Project, is_held: bool
) -> None:
    """The key alone is its first permit, which may be free."""
    limits = (Limit("imports", 3),)
    taken = [project.hold("imports", limits=limits) for _ in range(3)]
    leases = {lease.key: lease for lease in taken}
    if not is_held:
        project.service.release(leases["imports"])

    run = project.redlock("release", "imports", "--yes")

    assert run.code == (0 if is_held else 1)
    named = "Other permits of imports are in use, and stay: imports##2, imports##3."
    assert named in run.out
    assert "`celery -A proj redlock release 'imports##2'`" in run.out
    assert len(locks(project.nodes, "imports")) == 6


def test_release_of_a_permit_for_a_start_leaves_the_lock(project: Project) -> None:
    """The run that is under way goes on, and learns of nothing."""
    limits = (Limit("mail", 1), Limit("tenant", 1), Limit("mail", 1, 60.0))
    lease = project.hold(["mail", "tenant"], limits=limits)

    run = project.redlock("release", "mail@@1", typed="y\n")

    assert run.code == 0
    assert "It is a permit for a start of mail, which may have 1 starts in" in run.out
    assert "Another run can start after the release." in run.out
    assert "together" not in run.out
    assert "Release this permit for a start?" in run.err
    assert not locks(project.nodes, "mail@@1")
    assert project.service.extend(lease)
    assert lease.released_by == ""


def test_release_with_kill_refuses_a_permit_for_a_start(project: Project) -> None:
    """Its run may have ended long ago, and another one have its process."""
    project.hold("mail", limits=(Limit("mail", 1), Limit("mail", 1, 60.0)))

    run = project.redlock("release", "mail@@1", "--kill", "--yes")

    assert run.code == 2
    assert "--kill is for the lock that a run holds." in run.err
    assert len(locks(project.nodes, "mail@@1")) == 3


def test_release_with_kill_refuses_a_lock_of_another_program(project: Project) -> None:
    """Its value names no process that could be killed."""
    for node in project.nodes:
        node.command("SET", KEY, "by hand")

    run = project.redlock("release", "k", "--kill", "--yes")

    assert run.code == 2
    assert "is killed" not in run.out
    assert "which --kill cannot end. Nothing was released." in run.err
    assert len(locks(project.nodes, "k")) == 3
    assert released(project) == []


def test_release_with_kill_names_those_that_were_killed_before_one_was_not(
    project: Project,
) -> None:
    """Two holders are in the values of a contended lock."""
    project.hold("k", task_id="an-id")
    project.nodes[2].command("SET", KEY, f"{'f' * 32}.{'0' * 16}\n7\n\n\nhost\n99")
    app = new_app({"redlock_nodes": project.urls, "redlock_node_timeout": PATIENT})
    ended: dict[str, Any] = {"w@worker-1": []}
    app.control = Control(replies={"active": [REPLIES["active"], ended]})

    run = run_here(app, "release", "k", "--kill", "--yes")

    assert run.code == 1
    assert "was killed with SIGTERM by worker w@worker-1. No worker can kill" in run.err
    assert run.err.endswith("Nothing was released.\n")


def test_release_lists_a_claim_of_several_keys(project: Project) -> None:
    """The keys of the call stand in one line."""
    claim(project, "account:1\naccount:2")

    run = project.redlock("release", "--claims", typed="y\n")

    assert "account:1 and account:2  proj.send_invoice" in run.out
    assert claimed(project) == set()


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
    assert ("There is no terminal" in run.err) == (not typed)
    assert len(locks(project.nodes, "k")) == 3
    assert claimed(project) == {"invoice:1"}


@pytest.mark.long
def test_release_that_gets_no_answer_at_a_terminal_does_nothing(
    project: Project,
) -> None:
    """Ctrl-D is typed at a terminal: none is missing, and no option is advised."""
    project.hold("k")

    asked = "Release this lock?"
    shown = project.on_a_terminal("release", "k", until=asked, typed="\x04")

    assert "Nothing was done." in shown
    assert "There is no terminal" not in shown
    assert len(locks(project.nodes, "k")) == 3


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
        ("k", ("Released k on 2 of 3 nodes,", "until its ttl has ended")),
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


@pytest.mark.long
def test_release_with_closed_streams_is_done_as_with_open_ones(
    project: Project,
) -> None:
    """Some programs start others without any. Python has None in their place."""
    project.hold("k")

    asked = project.run("release", "k", redirected="<&-")

    assert asked.code == 1
    assert "Traceback" not in asked.err
    assert asked.err.endswith("add --yes.\nNothing was done.\n")
    assert locks(project.nodes, "k")

    seen = project.run("ls", redirected=">&-")
    released = project.run("release", "k", "--yes", redirected="<&- >&-")

    assert (seen.code, seen.err) == (0, "")
    assert (released.code, released.err) == (0, "")
    assert not locks(project.nodes, "k")


def test_node_that_hangs_is_waited_for_twice_alone() -> None:
    """Once for the lock, and once for its state; not again for other permits."""
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        url = f"redis://127.0.0.1:{hangs.getsockname()[1]}/0"
        with client([url], node_timeout=0.05, connect_timeout=0.3) as redlock:
            ask(redlock, "k")
        hangs.settimeout(0)
        for _ in range(2):
            hangs.accept()[0].close()
        with pytest.raises(BlockingIOError):
            hangs.accept()


def test_release_deletes_a_lock_on_a_minority(project: Project) -> None:
    """A lock that is left on one node can be released."""
    project.steal("k", 0)

    run = project.redlock("release", "k", "--yes")

    assert (
        "held by proj.other[other-id] on worker-9 (pid 99), on 1 of 3 nodes" in run.out
    )
    assert "Released k on 1 of 3 nodes," in run.out
    assert not locks(project.nodes, "k")


def test_release_says_that_a_value_is_not_ours(project: Project) -> None:
    """A value that another program wrote is named as such before it is deleted."""
    for node in project.nodes:
        node.command("SET", KEY, "by hand")

    run = project.redlock("release", "k", "--yes")

    assert "k has a value of another program, on 3 of 3 nodes." in run.out
    assert "Another program has written this value, and does not learn" in run.out
    assert "on_lock_lost" not in run.out
    assert not locks(project.nodes, "k")


# -- the record of a release -------------------------------------------------------


def released(project: Project, key: str = "k") -> list[dict[str, Any]]:
    """Return the releases of the key that ``show`` lists."""
    found: list[dict[str, Any]] = project.redlock("show", key, "--json").document[
        "released"
    ]
    return found


def test_release_is_recorded_on_the_nodes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names operator, instant, machine, reason and holder, but no token."""
    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.delenv("SUDO_USER", raising=False)
    lease = project.hold("k")
    before = time.time()

    project.redlock("release", "k", "--yes", "--reason", "stuck\nsince noon")
    shown = project.redlock("show", "k")
    (found,) = released(project)

    assert before <= found.pop("at") + 0.001
    assert found == {
        "key": "k",
        "who": "alice",
        "host": socket.gethostname(),
        "tool": "celery redlock release",
        "reason": "stuck since noon",
        "holder": "proj.send_invoice[id-of-k] on worker-1 (pid 4711)",
        "killed": False,
        "nodes": 3,
    }
    assert shown.code == 1
    assert "k is not held." in shown.out
    assert "alice on" in shown.out
    assert lease.token not in shown.out
    assert released(project, "another") == []


def test_release_names_the_user_behind_sudo(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names the person, not root."""
    monkeypatch.setenv("LOGNAME", "root")
    monkeypatch.setenv("SUDO_USER", "alice")
    project.hold("k")

    project.redlock("release", "k", "--yes")

    assert [one["who"] for one in released(project)] == ["alice (sudo)"]
    assert [one["reason"] for one in released(project)] == [None]


def test_node_without_the_record_does_not_matter(project: Project) -> None:
    """A release while a node is away is listed by the others, and when it is back."""
    project.hold("k")
    project.kill(0)
    project.redlock("release", "k", "--yes", "--reason", "why")
    project.nodes[0].restart()

    assert [(one["reason"], one["nodes"]) for one in released(project)] == [("why", 2)]


def test_release_that_found_nothing_is_no_release(project: Project) -> None:
    """A lock that expired before the answer is not listed as released."""
    project.hold("k")

    answer = Typing(lambda: project.steal("k", 0, 1, 2), "y\n")
    run = project.redlock("release", "k", typed=answer)

    assert "Release this lock?" in run.err
    assert released(project) == []


def test_release_that_found_nothing_does_not_say_that_the_lock_is_free(
    project: Project,
) -> None:
    """Another client may have it, and be the reason."""
    project.hold("k")

    answer = Typing(lambda: project.steal("k", 0, 1, 2), "y\n")
    run = project.redlock("release", "k", "--json", typed=answer)

    assert run.code == 1
    assert run.document["held"] is None


def test_release_of_a_lock_without_a_task_cannot_kill(project: Project) -> None:
    """There is no worker to ask, so nothing is released."""
    project.hold("k", task="", task_id="")

    run = project.redlock("release", "k", "--yes", "--kill")

    assert run.code == 1
    assert "No worker can kill code outside of a task on worker-1" in run.err
    assert len(locks(project.nodes, "k")) == 3


def test_release_of_claims_takes_no_reason(project: Project) -> None:
    """A claim has no holder that runs."""
    run = project.redlock("release", "--claims", "--kill")

    assert run.code == 2
    assert "--reason and --kill are for locks." in run.err


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

    def succeed() -> None:
        Claims(project.service).release("invoice:1", "job")
        claim(project, job="successor")

    run = project.redlock("release", "--claims", typed=Typing(succeed, "y\n"))

    assert "Release 1 claim?" in run.err
    assert run.code == 1
    assert "Released 0 claims." in run.out
    assert claimed(project) == {"invoice:1"}


def test_release_claims_without_any_node_is_an_error(project: Project) -> None:
    """Unreachable nodes may have claims: it exits with 3."""
    project.kill(0, 1, 2)

    run = project.redlock("release", "--claims", "--yes")

    assert run.code == 3
    assert "It cannot be told whether there is a claim" in run.out
    assert run.out.count("refused the connection") == 3


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
