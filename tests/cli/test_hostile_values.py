"""Values that other programs have written into keys of locks.

The commands that would repair such a key must not fail because of it, and it must not
hide the other keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.cli.project import Project
from tests.harness.hostile import VALUES, values

NAME = "redlock:lock:odd"


def check(project: Project, value: bytes) -> None:
    """Show, list and release a lock with this value, beside one of a task."""
    (node,) = project.nodes
    node.command("SET", NAME, value, "PX", 60_000)
    node.command("PEXPIRE", "redlock:lock:invoice:1", 60_000)

    for words in (["ls", "--all"], ["ls", "--all", "--json"], ["show", "odd"]):
        run = project.redlock(*words)
        assert run.code in (0, 1), (words, run.err)
        assert "odd" in run.out
        assert "\x1b" not in run.out
    assert "invoice:1" in project.redlock("ls").out
    released = project.redlock("release", "odd", "--yes")
    assert (released.code, released.err) == (0, ""), released
    assert "Released odd, held by " in released.out
    assert node.command("EXISTS", NAME) == 0
    shown = project.redlock("show", "odd")
    assert shown.code == 1
    assert "\x1b" not in shown.out


@pytest.fixture
def one(start_project: Callable[..., Project]) -> Project:
    """Give a project on one node, with a lock of a task.

    The node is asked some thousand times, and its one late answer would be red.
    """
    project = start_project(1, {"redlock_node_timeout": 4.5})
    project.hold("invoice:1")
    project.nodes[0].command(
        "PERSIST", "redlock:lock:invoice:1"
    )  # the test may be slow
    return project


@pytest.mark.long
def test_no_value_of_a_lock_breaks_a_command(one: Project) -> None:
    """Numbers out of bounds and foreign lines are read as nothing."""
    for value in VALUES:
        check(one, value)


@pytest.mark.long
@pytest.mark.timeout(900)  # two thousand commands
@given(values)
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(b"\xff" * 49)
def test_no_generated_value_of_a_lock_breaks_a_command(
    one: Project, value: bytes
) -> None:
    """Values with any bytes, lines and numbers are listed, shown and released."""
    check(one, value)


def test_value_of_another_program_is_listed_as_unreadable(one: Project) -> None:
    """Its key is there, and nothing is taken from the value for a host or a task."""
    one.nodes[0].command("SET", NAME, "secret\n7\ntask\nid", "PX", 60_000)

    (line,) = [line for line in one.redlock("ls").out.splitlines() if "odd" in line]

    assert "unreadable: of another program" in line
    assert "secret" not in line
    assert "task" not in line.replace("of another program", "")


SEQUENCE = "id\x1b]0;OWNED\x07\x1b[2J"


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ["show", "invoice:7"],
        pytest.param(["release", "invoice:7", "--dry-run"], marks=pytest.mark.long),
        pytest.param(
            ["explain", "proj.send_invoice", "--args", "[7]"], marks=pytest.mark.long
        ),
        pytest.param(["ls"], marks=pytest.mark.long),
        pytest.param(["show", "invoice:7", "--json"], marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_no_text_of_a_message_controls_the_terminal(
    project: Project, words: list[str]
) -> None:
    """The id of a task is shown without the characters of its sequences."""
    project.hold("invoice:7", task_id=SEQUENCE, task="proj.send_invoice")

    shown = project.on_a_terminal(*words)

    assert "OWNED" in shown
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown


def test_list_in_the_place_of_a_lock_is_told(one: Project) -> None:
    """A key of another kind has no value that could be compared."""
    one.nodes[0].command("RPUSH", NAME, "x")

    assert "odd" in one.redlock("ls", "--all").out
    run: Any = one.redlock("show", "odd")
    assert run.code in (1, 3), run.err
    refused = one.redlock("release", "odd", "--yes")
    assert refused.code == 3
    assert "WRONGTYPE" in refused.out
    assert ".." not in refused.out


def test_value_of_another_program_beside_a_lock_is_read_nowhere(
    project: Project,
) -> None:
    """Not for the answer of its node, not in JSON, and not in a finding."""
    project.hold("odd")
    project.nodes[0].command("SET", NAME, "secret\n7\nalien.task\nid", "PX", 60_000)

    shown = project.redlock("show", "odd")
    asked = project.redlock("release", "odd", "--dry-run", "--json")
    examined = project.redlock("doctor", "--json")

    assert "held by another program, " in shown.out
    assert [it["task"] for it in asked.document["holders"]] == ["proj.send_invoice", ""]
    for run in (shown, asked, examined):
        assert "alien" not in run.out
        assert "secret" not in run.out
