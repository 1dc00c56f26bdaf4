"""What all commands have in common: how they are found, and how they fail."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from celery_redlock.cli import redlock

if TYPE_CHECKING:
    from pathlib import Path

    from celery_redlock.devnodes import DevNodes
    from tests.cli.project import Project

CONTEXT = click.Context(redlock)
COMMANDS = redlock.list_commands(CONTEXT)
ON_NODES = ["ls", "show k", "release k", "leaked", "doctor", "bench", "init"]


def test_help_lists_every_command(project: Project) -> None:
    """Each has a line, none of which is cut off."""
    run = project.redlock("--help")

    assert run.code == 0
    lines = run.out.split("Commands:")[1].strip().splitlines()
    assert [line.split()[0] for line in lines] == COMMANDS
    assert not any(line.endswith("...") for line in lines)


def test_a_misspelt_command_is_corrected(project: Project) -> None:
    """The nearest name is proposed, and the exit code says wrong usage."""
    run = project.redlock("relase", "k")

    assert run.code == 2
    assert "release" in run.err.split("Did you mean")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_speaks_json(name: str) -> None:
    """Whatever people can read, programs can."""
    command = redlock.get_command(CONTEXT, name)

    assert command is not None
    assert any("--json" in option.opts for option in command.params)


@pytest.mark.parametrize("command", ON_NODES)
def test_without_nodes_a_command_says_what_to_set(
    project: Project, command: str
) -> None:
    """A setting that is wrong is wrong usage: exit code 2, the remedy on stderr."""
    run = project.redlock(*command.split(), redlock_nodes=[])

    assert (run.code, run.out) == (2, "")
    assert "redlock_nodes is not set" in run.err


def test_no_password_is_shown(project: Project, three_nodes: DevNodes) -> None:
    """Nodes are called by their names also where their URLs have secrets."""
    urls = [url.replace("://", "://:hush@") for url in three_nodes.urls]

    for command in ("ls", "doctor", "doctor --json"):
        run = project.redlock(*command.split(), redlock_nodes=urls)
        assert "hush" not in run.out + run.err
        assert "127.0.0.1" in run.out


def test_celery_help_imports_no_command(tmp_path: Path) -> None:
    """Users of `celery` who use none of ours do not wait for them."""
    program = (
        "import sys\n"
        "from celery.bin import celery\n"
        "celery.celery.get_command(None, 'redlock').get_short_help_str()\n"
        "print([name for name in sys.modules if name.startswith('celery_redlock.cli.')"
        " or name == 'rich'])"
    )

    said = subprocess.run(  # noqa: S603  (the program above)
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert said.stdout == "[]\n"


def test_live_views_work_without_rich(
    project: Project, three_nodes: DevNodes, tmp_path: Path
) -> None:
    """Rich is an extra: without it there is plain text."""
    (tmp_path / "rich.py").write_text("raise ImportError('there is no rich')")

    shown = project.on_a_terminal("top", "--every", "0.1", until="votes")

    assert "3 of 3 nodes vote" in shown
    assert "Traceback" not in shown
