"""What every command has: the app, a way to speak, an exit code for each failure."""

from __future__ import annotations

import json
import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import click
from celery.bin.base import CeleryCommand

from celery_redlock.errors import (
    ConfigurationError,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.settings import Settings

__all__ = ["DONE", "ERROR", "USAGE", "WARNING", "Command", "Failure", "Session", "View"]

DONE, WARNING, USAGE, ERROR = range(4)


class Failure(click.ClickException):
    """Ends a command with a message and an exit code."""

    def __init__(self, message: str, code: int = WARNING) -> None:
        super().__init__(message)
        vars(self)["exit_code"] = code


class View(Protocol):
    """Something to be shown, in either way, of which each is made when needed."""

    def lines(self) -> Sequence[str]:
        """Return what people see."""

    def document(self) -> Any:
        """Return what goes into JSON."""


class Session:
    """One run of one command.

    Attributes:
        app: The Celery app.
        as_json: Whether a program reads what we say.
        colors: Whether colors are welcome.
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
        """Print lines for people; nothing where a program reads."""
        if not self.as_json:
            self._print(lines)

    def tell(self, lines: Sequence[str], document: Any) -> None:
        """Print lines for people, or a JSON document for a program."""
        self._print([json.dumps(document)] if self.as_json else lines)

    def show(self, view: View) -> None:
        """Print a view."""
        self._print(self.render(view))

    def render(self, view: View) -> Sequence[str]:
        """Return what ``show`` prints."""
        if self.as_json:
            return [json.dumps(view.document())]
        lines = view.lines()
        return lines if self.colors else [click.unstyle(line) for line in lines]

    def _print(self, lines: Sequence[str]) -> None:
        click.echo("\n".join(lines), color=None if self.colors else False)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something is done. Ends the command unless the answer is yes."""
        try:
            if yes or click.confirm(question, err=True):
                return
        except click.Abort:  # there was nobody to ask
            click.echo(err=True)
        click.echo("Nothing was done.", err=True)
        raise click.exceptions.Exit(WARNING)


class Command(CeleryCommand):
    """A command that takes ``--json`` and ends with the package's exit codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="For programs.")
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run it with a session in the context."""
        celery, as_json = ctx.obj, ctx.params.pop("as_json")
        ctx.obj = Session(celery.app, as_json=as_json, colors=not celery.no_color)
        # What the log would say of nodes, the commands say themselves.
        logging.getLogger("celery_redlock").addHandler(logging.NullHandler())
        try:
            return super().invoke(ctx)
        except RedlockError as error:
            raise Failure(str(error), _code_of(error)) from error


def _code_of(error: RedlockError) -> int:
    if isinstance(error, ConfigurationError):
        return USAGE
    return ERROR if isinstance(error, QuorumUnreachable) else WARNING
