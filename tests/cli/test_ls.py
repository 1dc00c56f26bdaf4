"""``redlock ls``: the locks that are held."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from celery_redlock.devnodes import DevNode
from celery_redlock.locks.limits import Limit
from tests.cli.project import FOREIGN, Project


def test_ls_lists_the_holder_of_each_lock(project: Project) -> None:
    """Each lock has a line with its key, task, id, host, pid, fence and votes."""
    lease = project.hold("invoice:42")

    run = project.redlock("ls")

    assert run.code == 0
    line = next(text for text in run.out.splitlines() if "invoice:42" in text)
    words = ("proj.send_invoice", "id-of-invoice:42", "worker-1", "4711", "3/3")
    assert all(word in line for word in (*words, str(lease.fence)))
    assert "1 lock held, as seen on 3 of 3 nodes." in run.out


def test_ls_in_json_is_one_document(project: Project) -> None:
    """A program gets all fields, in seconds, but no token: that proves ownership."""
    lease = project.hold("invoice:42", started=1_700_000_000.0)

    run = project.redlock("ls", "--json")

    (lock,) = run.document["locks"]
    assert lock.pop("age") > 0
    assert 0 < lock.pop("ttl_left") <= 60
    assert lock == {
        "key": "invoice:42",
        "task": "proj.send_invoice",
        "task_id": "id-of-invoice:42",
        "host": "worker-1",
        "pid": 4711,
        "started": 1_700_000_000.0,
        "fence": lease.fence,
        "keys": [],
        "permit": None,
        "limit": None,
        "kept": False,
        "votes": 3,
        "held": True,
    }
    assert lease.token not in run.out


def test_ls_names_the_keys_that_were_taken_together(project: Project) -> None:
    """Each key has a line, which names the others."""
    project.hold(["account:1", "account:2"])

    run, document = project.redlock("ls"), project.redlock("ls", "--json").document

    assert "account:1 with account:2  " in run.out
    assert "account:2 with account:1  " in run.out
    keys = ["account:1", "account:2"]
    assert [lock["keys"] for lock in document["locks"]] == [keys, keys]


def test_ls_says_which_permit_a_lock_is(project: Project) -> None:
    """A permit names its limit, and a line says how many are in use."""
    project.hold("imports")
    lease = project.hold("imports", limits=(Limit("imports", 3),))

    run, document = project.redlock("ls"), project.redlock("ls", "--json").document

    number = int(lease.key.removeprefix("imports##"))
    assert f"{lease.key} (permit {number} of 3)  " in run.out
    assert "2 locks held" in run.out
    assert "imports: 2 of 3 permits in use." in run.out
    limit = {"key": "imports", "most": 3, "period": 0.0}
    assert document["limits"] == [{**limit, "in_use": 2}]
    plain, permit = document["locks"]
    assert (plain["permit"], plain["limit"]) == (None, None)
    assert (permit["permit"], permit["limit"]) == (number, limit)


def test_ls_of_a_pattern_does_not_say_that_no_other_lock_is_held(
    project: Project,
) -> None:
    """A number of locks that a pattern selects is not the number of all."""
    project.hold("invoice:1")

    run = project.redlock("ls", "other:*")

    assert run.out.startswith("0 locks held whose key matches other:*, as seen on 3")


def test_ls_takes_no_plain_key_for_a_permit(project: Project) -> None:
    """A key of a user may look like the name of a permit, or of one for a start."""
    for key in ("pr", "pr#17", "pr@2"):
        project.hold(key)

    run, document = project.redlock("ls"), project.redlock("ls", "--json").document

    assert "3 locks held" in run.out
    assert not re.search("permit|start ", run.out)
    assert document["limits"] == []
    assert not any(lock["limit"] or lock["kept"] for lock in document["locks"])


def test_ls_counts_no_permit_for_a_start_as_a_lock(project: Project) -> None:
    """It is kept after the run, and listed as what it is."""
    limits = (Limit("mail", 1), Limit("mail", 2, 60.0))
    project.service.release(project.hold("mail", limits=limits))
    project.hold("mail", limits=limits)

    run, document = project.redlock("ls"), project.redlock("ls", "--json").document

    assert "1 lock held" in run.out
    assert "mail@@1 (start 1 of 2 in 60 s)" in run.out
    assert "mail: 2 of 2 starts in 60 s are taken. The next one is possible" in run.out
    assert "2 permits for a start are kept until the period has passed." in run.out
    assert [lock["kept"] for lock in document["locks"]] == [False, True, True]

    project.nodes[0].kill()
    names = ("redlock:lock:mail@@1", "redlock:lock:mail@@2")
    project.nodes[1].command("DEL", *names)
    run = project.redlock("ls")
    assert "0 of 2 starts in 60 s are taken for certain" in run.out
    assert "2 permits for a start may be kept until the period has passed." in run.out


def test_ls_counts_permits_only_where_all_were_selected(project: Project) -> None:
    """A part of the permits of a limit says nothing about the limit."""
    for _ in range(2):
        project.hold("imports", limits=(Limit("imports", 2),))

    part = project.redlock("ls", "imports#*")
    whole = project.redlock("ls", "imp*")

    assert "permits in use" not in part.out
    assert "imports: 2 of 2 permits in use." in whole.out


def test_ls_filters_by_pattern(project: Project) -> None:
    """The pattern is one of Redis."""
    for key in ("invoice:1", "invoice:2", "report:1"):
        project.hold(key)

    run = project.redlock("ls", "invoice:*", "--json")

    assert [lock["key"] for lock in run.document["locks"]] == ["invoice:1", "invoice:2"]


def test_ls_does_not_read_the_prefix_as_a_pattern(
    start_project: Callable[..., Project],
) -> None:
    """A prefix with wildcard characters selects its own keys only."""
    project = start_project(1, {"redlock_prefix": "a*[x]"})
    for name in ("a*[x]:lock:mine", "abx:lock:theirs"):
        project.nodes[0].command("SET", name, FOREIGN, "PX", 60_000)

    run = project.redlock("ls", "--json")

    assert [lock["key"] for lock in run.document["locks"]] == ["mine"]


def test_ls_with_a_hung_node_does_not_hang(project: Project) -> None:
    """It stops waiting for a node that accepts connections and does not answer."""
    project.hold("invoice:42")
    project.nodes[0].pause()

    run = project.redlock("ls", redlock_connect_timeout=2.0)

    assert run.code == 0
    assert "invoice:42" in run.out
    assert "within 2 s" in run.out


def test_ls_all_lists_keys_without_a_majority(project: Project) -> None:
    """A key on one node is not held; ``--all`` lists it."""
    project.hold("held")
    project.steal("left", 0)

    usual, everything = project.redlock("ls"), project.redlock("ls", "--all")

    assert "left" not in usual.out.split("1 more key")[0]
    assert "1 more key on fewer nodes than a majority" in usual.out
    assert "left" in everything.out
    assert "1/3" in everything.out


def test_ls_all_lists_two_holders_of_one_key(project: Project) -> None:
    """A key has two lines if a minority names another holder."""
    project.hold("k")
    project.steal("k", 0)

    locks = project.redlock("ls", "--all", "--json").document["locks"]

    assert {(lock["task"], lock["votes"], lock["held"]) for lock in locks} == {
        ("proj.send_invoice", 2, True),
        ("proj.other", 1, False),
    }


def scans(node: DevNode) -> list[list[str]]:
    """Return the commands of a node that iterated over its keys."""
    entries = node.command("SLOWLOG", "GET", "100000")
    commands = [words for _, _, _, words, *_ in entries]
    return [words for words in commands if words[0].upper() in ("SCAN", "KEYS")]


@pytest.mark.every_server
def test_ls_scans_in_small_steps(project: Project) -> None:
    """No command makes a node look at more than five hundred keys."""
    names = [f"redlock:lock:{number:04}" for number in range(2000)]
    for node in project.nodes:
        node.command("MSET", *(word for name in names for word in (name, FOREIGN)))
        node.command("CONFIG", "SET", "slowlog-max-len", "100000")
        node.command("CONFIG", "SET", "slowlog-log-slower-than", "0")

    run = project.redlock("ls", "--json")

    assert len(run.document["locks"]) == 2000
    for node in project.nodes:
        commands = scans(node)
        assert len(commands) >= 2000 / 500
        for verb, *_, count_word, count in commands:
            assert (verb, count_word, int(count) <= 500) == ("SCAN", "COUNT", True)


@pytest.mark.long
def test_ls_fits_the_terminal(project: Project) -> None:
    """Lines are cut to its width, and keys cannot send control characters to it."""
    project.steal(f"{'long' * 30}\x1b[2J", 0, 1, 2)  # by another program

    shown = project.on_a_terminal("ls", columns=80)

    plain = re.sub(r"\x1b\[(0|2|32)m|\r", "", shown)  # colors
    assert "\x1b" not in plain
    assert "longlong" in plain
    assert max(map(len, plain.splitlines())) <= 80


@pytest.mark.long
def test_ls_watches_until_it_is_interrupted(project: Project) -> None:
    """``--watch`` lists the locks again and again, and Ctrl-C is no error."""
    with project.start("ls", "--watch", "--every", "0.05", "--json") as watching:
        assert watching.document()["locks"] == []
        project.hold("invoice:42")
        while not watching.document()["locks"]:
            pass
        run = watching.interrupt()

    assert (run.code, run.err) == (0, "")
