"""One run of one command: its app, its output, its questions and its exit code."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_redlock.app.runtime import forget_runtimes, runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.secret import SecretUrl
from celery_redlock.basics.text import MOST_TOLD, printable_line
from celery_redlock.cli.output.ink import inked, is_at_terminal
from celery_redlock.errors import ConfigurationError, QuorumUnreachable, RedlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from celery import Celery

    from celery_redlock.locks.redlock import Redlock

DONE, WARNING, USAGE, ERROR = range(4)
_NO_APP = "default"  # the name of Celery's own app, which is used without -A
_MAX_SHARE = 0.2  # of the time, for making frames
# A screen of its own on a terminal, without a cursor, where long lines are cut off.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_TO_TOP, _END_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


class Failure(click.ClickException):
    """Ends a command with a message and an exit code."""

    def __init__(self, message: str, code: int = WARNING) -> None:
        super().__init__(inked(message, colors=False))
        vars(self)["exit_code"] = code


@dataclass(frozen=True)
class Session:
    """One run of one command: prints lines, in colors or not, or a JSON document."""

    app: Celery
    as_json: bool
    colors: bool

    @property
    def loaded_app(self) -> Celery:
        """The app with all its tasks: its modules are imported, as by a worker."""
        self.app.loader.import_default_modules()
        return self.app

    @property
    def redlock(self) -> Redlock:
        """The lock service on the app's nodes."""
        return runtime_of(self.app).redlock

    def say(self, *lines: str) -> None:
        """Print lines; with ``--json``, print nothing."""
        if not self.as_json:
            self._print(inked(line, colors=self.colors) for line in lines)

    def tell(self, lines: Iterable[str], document: Callable[[], Any]) -> None:
        """Print lines; with ``--json``, print what ``document`` returns."""
        self._print(self._rendered(lines, document))

    def _rendered(
        self, lines: Iterable[str], document: Callable[[], Any]
    ) -> Iterable[str]:
        if self.as_json:
            return [json.dumps(document())]
        return (inked(line, colors=self.colors) for line in lines)

    def watch(
        self, look: Callable[[], tuple[Iterable[str], Callable[[], Any]]], every: float
    ) -> None:
        """Show new results again and again, as ``tell`` does. Returns after Ctrl-C.

        On a terminal, frames replace each other on a screen of their own. Elsewhere,
        and with ``--json``, they are printed one after the other.

        Args:
            look: Returns the arguments of ``tell``. Lines that do not fit are cut off.
            every: Seconds from frame to frame; more if making one takes long.
        """
        clock = SYSTEM_CLOCK
        with (
            contextlib.suppress(KeyboardInterrupt),
            _screen(plain=self.as_json) as show,
        ):
            while True:
                began = clock.monotonic()
                lines = list(self._rendered(*look()))
                took = clock.monotonic() - began
                show(lines)
                clock.sleep(max(every - took, took / _MAX_SHARE - took))

    def _print(self, lines: Iterable[str]) -> None:
        _write("\n".join(lines), color=None if self.colors else False)

    def confirm(
        self, question: str, *, yes: bool, otherwise: str = "Nothing was done."
    ) -> None:
        """Ask, if the answer is not ``yes`` already. Another one ends the command."""
        try:
            if yes or click.confirm(inked(question, colors=False), err=True):
                return
        except (click.Abort, RuntimeError):  # Ctrl-C, the end of stdin, or no stdin
            click.echo(err=True)
            if not (sys.stdin and sys.stdin.isatty()):
                click.echo("There is no terminal to answer at: add --yes.", err=True)
        click.echo(otherwise, err=True)
        raise click.exceptions.Exit(WARNING)


class Interval(click.FloatRange):
    """A parameter type: seconds, from 0 to an hour by default."""

    name = "seconds"

    def __init__(self, most: float = 3600.0) -> None:
        super().__init__(min=0.0, max=most)

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the seconds."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds


every_option = click.option(
    "--every",
    type=Interval(),
    default=2.0,
    show_default=True,
    help="Seconds between refreshes.",
)


def _write(text: str, *, color: bool | None = None) -> None:
    """Print a text. A disk that is full ends the command with one line."""
    try:
        click.echo(text, color=color)
    except OSError as error:
        if error.errno == errno.EPIPE:  # Click ends quietly then
            raise
        raise Failure(
            f"The output could not be written ({error.strerror}). What the command "
            "has done stays done.",
            ERROR,
        ) from error


@contextlib.contextmanager
def _screen(*, plain: bool) -> Iterator[Callable[[Sequence[str]], None]]:
    if plain or not is_at_terminal():
        yield lambda lines: _write("\n".join(lines))
        return
    click.echo(_ENTER, nl=False, color=True)
    try:
        yield _draw
    finally:
        click.echo(_LEAVE, nl=False, color=True)


def _draw(lines: Sequence[str]) -> None:
    """Draw a frame over the one before; what does not fit is cut off."""
    shown = lines[: shutil.get_terminal_size().lines - 1]
    text = "".join(f"{line}{_END_OF_LINE}\n" for line in shown)
    click.echo(f"{_TO_TOP}{text}{_REST}", nl=False, color=True)


_NODE = click.Option(
    ["--node", "nodes"],
    multiple=True,
    type=SecretUrl,
    metavar="TEXT",
    help="URL of a node, in place of those of the app; once for each node.",
)
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")


class Command(CeleryCommand):
    """A command that takes ``--node`` and ``--json``, and ends with a documented code.

    One that asks no nodes, or prints no JSON, does without the option.
    """

    def __init__(
        self,
        *args: Any,
        asks_nodes: bool = True,
        prints_json: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._asks_nodes = asks_nodes
        self.params += [_NODE] * asks_nodes + [_JSON] * prints_json

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with a ``Session``, and end with the code that it returns."""
        celery, as_json = ctx.obj, ctx.params.pop("as_json", False)
        # Without -A it is Celery's fallback app, which no shared task got by mistake.
        celery.app.set_as_current = True
        if urls := ctx.params.pop("nodes", ()) if self._asks_nodes else ():
            forget_runtimes()
            celery.app.conf.redlock_nodes = list(urls)
            # They may be a part of a deployment.
            with contextlib.suppress(ConfigurationError):
                runtime_of(celery.app).redlock.asks_for_votes = False
        ctx.obj = Session(celery.app, as_json=as_json, colors=not celery.no_color)
        # The commands report about nodes themselves, so log lines would repeat it.
        logging.getLogger("celery_redlock").addHandler(logging.NullHandler())
        try:
            code = super().invoke(ctx)
        except (Failure, RedlockError) as error:
            code = _code_of(error)
            hint = self._hint(ctx) if code == USAGE else ""
            raise Failure(f"{hint}{error}", code) from error
        ctx.exit(code or DONE)

    def _hint(self, ctx: click.Context) -> str:
        """Return how to name an app, for a command line that lacks it; or ``""``."""
        app = ctx.obj.app
        is_named = app.main != _NO_APP or app.conf.get("redlock_nodes")
        if is_named or not self._asks_nodes:
            return ""
        return (
            "No app is named. Name yours with -A: `celery -A proj redlock "
            f"{ctx.info_name} ...`, or name its nodes: `--node URL`. "
        )


def reason_of(error: Exception) -> str:
    """Return in a line what a database says, or its driver."""
    first, _, _ = str(error).partition("\n")
    return printable_line(f"{type(error).__name__}: {first}", MOST_TOLD).rstrip(".")


def _code_of(error: Failure | RedlockError) -> int:
    if isinstance(error, Failure):
        return error.exit_code
    if isinstance(error, ConfigurationError):
        return USAGE
    return ERROR if isinstance(error, QuorumUnreachable) else WARNING
