"""One run of one command: its app, its output, its questions and its exit code."""

from __future__ import annotations

import json
import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_redlock.app.runtime import runtime_of
from celery_redlock.errors import ConfigurationError, QuorumUnreachable, RedlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.settings import Settings

DONE, WARNING, USAGE, ERROR = range(4)


class Failure(click.ClickException):
    """Ends a command with a message and an exit code."""

    def __init__(self, message: str, code: int = WARNING) -> None:
        super().__init__(message)
        vars(self)["exit_code"] = code


class Session:
    """One run of one command.

    Attributes:
        app: The Celery app.
        as_json: Whether to print a JSON document instead of lines.
        colors: Whether to print colors.
    """

    def __init__(self, app: Any, *, as_json: bool, colors: bool) -> None:
        self.app = app
        self.as_json = as_json
        self.colors = colors

    @property
    def settings(self) -> Settings:
        """The app's settings."""
        return runtime_of(self.app).settings

    @cached_property
    def redlock(self) -> Redlock:
        """The lock service on the app's nodes."""
        return runtime_of(self.app).redlock

    def say(self, *lines: str) -> None:
        """Print lines; with ``--json``, print nothing."""
        if not self.as_json:
            self._print(lines)

    def tell(self, lines: Iterable[str], document: Callable[[], Any]) -> None:
        """Print lines; with ``--json``, print what ``document`` returns."""
        self._print(self.render(lines, document))

    def render(
        self, lines: Iterable[str], document: Callable[[], Any]
    ) -> Iterable[str]:
        """Return the lines that ``tell`` prints. Generators are read when needed."""
        if self.as_json:
            return [json.dumps(document())]
        return lines if self.colors else map(click.unstyle, lines)

    def _print(self, lines: Iterable[str]) -> None:
        click.echo("\n".join(lines), color=None if self.colors else False)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before a change. Ends the command unless the answer is yes."""
        try:
            if yes or click.confirm(question, err=True):
                return
        except click.Abort:  # stdin is closed
            click.echo(err=True)
        click.echo("Nothing was done.", err=True)
        raise click.exceptions.Exit(WARNING)


class Command(CeleryCommand):
    """A command that takes ``--json`` and ends with a documented exit code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with a ``Session``, and end with the code that it returns."""
        celery, as_json = ctx.obj, ctx.params.pop("as_json")
        ctx.obj = Session(celery.app, as_json=as_json, colors=not celery.no_color)
        # The commands report about nodes themselves, so log lines would repeat it.
        logging.getLogger("celery_redlock").addHandler(logging.NullHandler())
        try:
            code = super().invoke(ctx)
        except RedlockError as error:
            raise Failure(str(error), _code_of(error)) from error
        ctx.exit(code or DONE)


def _code_of(error: RedlockError) -> int:
    if isinstance(error, ConfigurationError):
        return USAGE
    return ERROR if isinstance(error, QuorumUnreachable) else WARNING
