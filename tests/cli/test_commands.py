"""The parts that all commands share: registration and exit codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from celery import Celery

from celery_redlock import cli
from celery_redlock.cli import redlock
from tests.cli.project import Project, run_here
from tests.harness.programs import end_of
from tests.nodes.support import run_python

CONTEXT = click.Context(redlock)
COMMANDS = redlock.list_commands(CONTEXT)
ON_NODES = ["ls", "show k", "release k", "leaked", "doctor", "bench", "init"]
EXPLAIN = "explain proj.send_invoice --args [42]"
COMMAND = """
import click

from celery_redlock.cli.output.session import DONE, Command
from celery_redlock.errors import QuorumUnreachable


@click.command(cls=Command, short_help="Greet the operator.")
@click.option("--fail", is_flag=True)
@click.pass_context
def greet(ctx, *, fail):
    if fail:
        raise QuorumUnreachable("Only 1 of 3 nodes answered.", key="k")
    ctx.obj.tell(["Good morning."], lambda: {"greeting": "Good morning."})
    ctx.exit(DONE)
"""


@pytest.fixture
def command_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the file of a command on the search path of the commands."""
    folder = tmp_path / "commands"
    folder.mkdir()
    (folder / "greet.py").write_text(COMMAND)
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(folder)])
    yield
    sys.modules.pop("celery_redlock.cli.greet", None)
    vars(cli).pop("greet", None)


@pytest.mark.parametrize("words", [("ls",), ("doctor",), ("explain", "task")])
def test_command_without_an_app_names_the_option(words: tuple[str, ...]) -> None:
    """Without -A there are no settings; the error says how to name the app."""
    run = run_here(Celery("default", set_as_current=False), *words)

    assert run.code == 2
    assert f"`celery -A proj redlock {words[0]} ...`" in run.err
    assert "a shared task" not in run.err


def test_command_is_one_file(project: Project, command_file: None) -> None:
    """A file is listed in the help, run, and its errors end with the exit codes."""
    listed = project.redlock("--help")
    lines, document = project.redlock("greet"), project.redlock("greet", "--json")
    failed = project.redlock("greet", "--fail")

    assert "greet        Greet the operator." in listed.out
    assert (lines.code, lines.out) == (0, "Good morning.\n")
    assert document.document == {"greeting": "Good morning."}
    assert (failed.code, failed.out) == (3, "")
    assert failed.err == "Error: Only 1 of 3 nodes answered.\n"


def test_help_lists_every_command(project: Project) -> None:
    """Each command has a line, and no line is cut off."""
    run = project.redlock("--help")

    assert run.code == 0
    lines = run.out.split("Commands:")[1].strip().splitlines()
    assert [line.split()[0] for line in lines] == COMMANDS
    assert not any(line.endswith("...") for line in lines)


def test_misspelt_command_is_corrected(project: Project) -> None:
    """The error proposes the nearest name, and the exit code says wrong usage."""
    run = project.redlock("relase", "k")

    assert run.code == 2
    assert "release" in run.err.split("Did you mean")[1]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "run"])
def test_every_command_prints_json(name: str) -> None:
    """Every command has the option ``--json``; the output of ``run`` is its child's."""
    command = redlock.get_command(CONTEXT, name)

    assert command is not None
    assert any("--json" in option.opts for option in command.params)


@pytest.mark.parametrize("command", ON_NODES)
def test_command_without_nodes_names_the_setting(
    project: Project, command: str
) -> None:
    """A missing setting is wrong usage: exit code 2, and the remedy on stderr."""
    run = project.redlock(*command.split(), redlock_nodes=[])

    assert (run.code, run.out) == (2, "")
    assert "redlock_nodes is not set" in run.err


@pytest.mark.parametrize(
    ("command", "on_two", "on_one"),
    [
        ("bench --count 5", "Node {0} refused the connection", r"\(need 2\)"),
        (EXPLAIN, "it would run", r"republished, to run after .*\(need 2\)"),
        ("leaked", "Node {0} refused the connection", "refused the connection"),
        ("ls", "k .* 2/3\n\n.*\nNode {0} refused the connection", "Too few nodes"),
        (
            "show k",
            "{0}  refused the connection",
            "It cannot be told whether k is held",
        ),
    ],
)
def test_command_needs_a_majority_of_the_nodes(
    project: Project, command: str, on_two: str, on_one: str
) -> None:
    """With one of three nodes down it says so; with two it exits with 3."""
    project.hold("k")

    project.kill(0)
    two = project.redlock(*command.split())
    project.kill(1)
    one = project.redlock(*command.split())

    assert two.code == 0
    assert re.search(on_two.format(project.label(0)), two.out)
    assert one.code == 3
    assert re.search(on_one, one.out + one.err)
    if command == "ls":
        assert "1 lock may be held: that" in one.out
    else:
        assert "id-of-k" not in one.out  # one node cannot name the holder


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this device")
@pytest.mark.parametrize(
    "words", [("ls",), pytest.param(("doctor", "--json"), marks=pytest.mark.long)]
)
def test_output_that_cannot_be_written_is_told_in_one_line(
    project: Project, words: tuple[str, ...]
) -> None:
    """A full disk is no fault of the program, so it prints no traceback."""
    with (
        Path("/dev/full").open("w") as full,
        project.start(*words, stdout=full) as running,
    ):
        run = running.type()

    assert run.code == 3
    assert run.err == (
        "Error: The output could not be written (No space left on device). What the "
        "command has done stays done.\n"
    )


def test_passwords_are_never_shown(project: Project) -> None:
    """Commands call nodes by their names, also if their URLs contain secrets."""
    urls = [url.replace("://", "://:hush@") for url in project.urls]

    for command in ("ls", "doctor", "doctor --json"):
        run = project.redlock(*command.split(), redlock_nodes=urls)
        assert "hush" not in run.out + run.err
        assert "127.0.0.1" in run.out


def test_celery_help_imports_no_command() -> None:
    """Users of other ``celery`` commands do not wait for the import of ours."""
    printed = run_python(
        "import sys\n"
        "from celery.bin import celery\n"
        "celery.celery.get_command(None, 'redlock').get_short_help_str()\n"
        "ours = 'celery_redlock.cli.'\n"
        "print([name for name in sys.modules if name.startswith(ours)])"
    )

    assert printed == ["[]"]


@pytest.mark.long
def test_shell_completes_commands_and_options() -> None:
    """As the page says, by the completion that Celery has of click."""
    typed = "celery -A proj redlock doctor --"
    variables = {
        "_CELERY_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    page = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text("utf-8")

    done = end_of(Path(sys.executable).with_name("celery"), variables=variables)

    assert {"plain,--wait", "plain,--ignore"} <= set(done.stdout.split())
    assert "_CELERY_COMPLETE=bash_source celery" in page
