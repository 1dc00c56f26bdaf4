"""``celery -A proj redlock init``: a question, an answer, a clear refusal."""

from __future__ import annotations

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_redlock.cli import redlock


def invoke(app: Celery, *words: str, answer: str = "") -> Result:
    """Run the command as ``celery`` does."""
    context = CLIContext(app=app, no_color=True, workdir=None)
    return CliRunner().invoke(redlock, words, obj=context, input=answer)


def unconnected_app() -> Celery:
    """Return an app whose only node is nowhere."""
    app = Celery("cli", set_as_current=False)
    app.conf.redlock_nodes = ["redis://:correct-horse@127.0.0.1:1/0"]
    return app


def test_init_shows_the_nodes_and_asks_first() -> None:
    """No is an answer; the password is not shown."""
    result = invoke(unconnected_app(), "init", answer="n\n")

    assert result.exit_code == 1
    assert "127.0.0.1:1/0" in result.output
    assert "Nothing was done" in result.output
    assert "correct-horse" not in result.output


def test_init_refuses_when_a_node_is_not_there() -> None:
    """Nothing was changed, it says."""
    result = invoke(unconnected_app(), "init", "--yes")

    assert result.exit_code == 1
    assert "Nothing was changed" in result.output
    assert "correct-horse" not in result.output


def test_init_without_nodes_says_what_to_set() -> None:
    """A mistake in the settings is no traceback."""
    result = invoke(Celery("cli", set_as_current=False), "init", "--yes")

    assert result.exit_code == 2
    assert "redlock_nodes" in result.output
