"""``run``: a command under a lock, for cron and shells."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import click

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.cli.output.session import Command, Failure, Interval, Session
from celery_redlock.devnodes import with_its_parent
from celery_redlock.errors import LockLost, LockUnavailable, QuorumUnreachable
from celery_redlock.locking import lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# As in sysexits.h, so that they are no code of the usual commands.
UNREACHABLE, HELD, LOST = 69, 75, 76
NOT_FOUND, SIGNAL = 127, 128  # as of a shell
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # not on Windows
_LOOK_EVERY = 0.02  # seconds
_WAIT_ENDS = 1.0  # seconds
_LONGEST_GRACE = 86400.0  # seconds
_ENDING = (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", 0))
_BY_TERMINAL = ("SIGINT", "SIGQUIT")  # it sends them to the command, too


class _CommandAfterKey(Command):
    """A command that takes its options also between KEY and COMMAND."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours = {
            name: option
            for option in self.params
            if isinstance(option, click.Option)
            for name in option.opts
        }

        def end_of_options(index: int) -> int:
            while index < len(args):
                name, has_value, _ = args[index].partition("=")
                if name not in ours:
                    break
                index += 1 if has_value or ours[name].is_flag else 2
            return index

        key = end_of_options(0)
        end = end_of_options(key + 1)
        moved = [*args[:key], *args[key + 1 : end], *args[key : key + 1], *args[end:]]
        rest: list[str] = super().parse_args(ctx, moved)
        return rest


@click.command(
    cls=_CommandAfterKey,
    prints_json=False,
    short_help="Run a command under a lock.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("key")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--wait", default=0.0, show_default=True, help="Seconds for the lock.")
@click.option("--ttl", type=float, help="Seconds; the service's by default.")
@click.option(
    "--grace",
    type=Interval(_LONGEST_GRACE),
    default=10.0,
    show_default=True,
    help="Seconds between SIGTERM and SIGKILL when the lock is lost.",
)
@click.option(
    "--held-code",
    type=click.IntRange(0, 255),
    default=HELD,
    show_default=True,
    help="Exit code if it is held.",
)
@click.pass_obj
def run(  # noqa: PLR0913  (the options of the command)
    session: Session,
    *,
    key: str,
    command: Sequence[str],
    wait: float,
    ttl: float | None,
    grace: float,
    held_code: int,
) -> int:
    """Run COMMAND while this process holds the lock KEY, and renew the lock.

    For cron and shells. Write options before COMMAND, and -- between them:
    celery redlock run nightly --wait 60 -- rsync -a here there

    Ends with the exit code of COMMAND, 128 + N if signal N ended it, 127 if there is no
    such command, 75 if another client holds the lock (COMMAND did not run), 69 if too
    few nodes answered (COMMAND did not run), and 76 if the lock was lost: COMMAND gets
    SIGTERM if it still runs, and SIGKILL after --grace seconds.

    Signals go on to COMMAND and, where there is no terminal, to the programs that it
    has started. It finds its fence in REDLOCK_FENCE. If this process is killed, Linux
    kills COMMAND, before the lock expires.
    """
    if command[0] == "--":  # click passes on what comes after KEY
        command = command[1:] or command
    program = shutil.which(command[0])
    if program is None:
        raise Failure(
            f"There is no command {command[0]!r}, or it may not be executed. Nothing "
            "was locked.",
            NOT_FOUND,
        )
    child = _Child([program, *command[1:]], grace)
    with child.gets_signals():
        try:
            with lock(
                session.redlock, key, ttl=ttl, wait=wait, on_lost=child.end
            ) as lease:
                return child.run(
                    {"REDLOCK_KEY": key, "REDLOCK_FENCE": str(lease.fence)}
                )
        except LockUnavailable as error:
            unreachable = isinstance(error, QuorumUnreachable)
            code = UNREACHABLE if unreachable else held_code
            raise Failure(f"{error} The command did not run.", code) from error
        except LockLost as error:
            raise Failure(f"{error} {child.end_text}", LOST) from error


class _Child:
    """The command: run once, ended when the lock is lost.

    Then it gets SIGTERM, and SIGKILL ``grace`` seconds later.
    """

    def __init__(self, command: Sequence[str], grace: float) -> None:
        self._command, self._grace = command, grace
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] | None = None  # signals that came while it was started
        self._is_lost = self._is_told = self._was_ended = False
        # A shell that ends leaves the programs behind that it has started, and they
        # work on without the lock. A terminal sends its signals to one group only.
        self._has_group = sys.platform != "win32" and not _has_terminal()

    @property
    def code(self) -> int:
        """The exit code, as a shell would give it."""
        code = self._wait(self._process) if self._process else 0
        return SIGNAL - code if code < 0 else code

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of the command, and return its code.

        Python handles a signal between two steps of the main thread. One that comes
        just before a system call, or in another thread, interrupts no wait. So no wait
        is without an end: the signal would reach the command when this has ended.
        """
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_WAIT_ENDS)

    @property
    def end_text(self) -> str:
        """The end of the command, after the loss of its lock, as a sentence."""
        if self._was_ended:
            return f"The command got SIGTERM, and ended with {self.code}."
        return f"The command had ended by itself, with {self.code}."

    def run(self, variables: dict[str, str]) -> int:
        """Run the command with these variables, and return its exit code."""
        self._early = []
        self._process = subprocess.Popen(  # noqa: S603  (what the user asked for)
            with_its_parent(self._command),
            env={**os.environ, **variables},
            start_new_session=self._has_group,
        )
        for number in self._early:
            self._forward(number)
        if self._is_lost:
            self.end()
        code = self.code
        if self._is_told and self._has_group:
            self._outwait(self._process.pid)
        return code

    def _outwait(self, group: int) -> None:
        """Wait for the programs that the command has left behind."""
        give_up_at = SYSTEM_CLOCK.monotonic() + self._grace + 1.0
        while self._send(0) and SYSTEM_CLOCK.monotonic() < give_up_at:
            with contextlib.suppress(ChildProcessError):  # in a container they are ours
                if sys.platform != "win32":
                    os.waitpid(-group, os.WNOHANG)
            SYSTEM_CLOCK.sleep(_LOOK_EVERY)

    def end(self, _: object = None) -> None:
        """End the command: the lock is lost. In the watchdog's thread."""
        self._is_lost = self._is_told = True
        if self._process is not None:
            self._was_ended = self._send(signal.SIGTERM) or self._was_ended
            timer = threading.Timer(self._grace, self._send, [_SIGKILL])
            timer.daemon = True
            timer.start()

    @contextlib.contextmanager
    def gets_signals(self) -> Iterator[None]:
        """Send this process's signals to the command while the block runs."""
        before = {}
        for name in _FORWARDED:
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) != signal.SIG_IGN:  # as by nohup
                before[number] = signal.signal(number, self._forward)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _forward(self, number: int, _: object = None) -> None:
        if self._process is None:
            if self._early is None:  # it waits for the lock
                sys.exit(SIGNAL + number)
            self._early.append(number)  # the program may run before its id is known
            return
        from_terminal = signal.Signals(number).name in _BY_TERMINAL
        if not (from_terminal and sys.stdin and sys.stdin.isatty()):
            self._is_told = self._is_told or number in _ENDING
            self._send(number)

    def _send(self, number: int) -> bool:
        """Send a signal; return False if there is no process any more."""
        process = self._process
        if process is None:
            return False
        if sys.platform == "win32" or not self._has_group:
            process.send_signal(number)
            return process.returncode is None
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):  # all have ended
            return False
        return True


def _has_terminal() -> bool:
    """Tell whether a terminal controls this process: programs may ask there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True
