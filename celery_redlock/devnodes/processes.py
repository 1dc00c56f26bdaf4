"""Child processes: start, wait until ready, pause, and end with all their children.

Each process leads a process group of its own, so Ctrl-C reaches only the program
that started it. On Linux the kernel kills the process when that program dies, if its
main thread started the process: the kernel ties this to the thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Below the range of outgoing connections: a client that reconnects again and again to
# a dead server in that range can be connected to itself.
PORTS = range(10_000, 32_000)
_POLL_EVERY = 0.005
_SHOWN = 3_000  # characters of a log in an error

# Becomes the command. It is a program of its own, because `preexec_fn` would run Python
# between fork and exec, where a lock that another thread holds is never released.
# setpriv of util-linux needs 1 ms, Python 20 ms; BusyBox's setpriv has no such option.
_OPTIONS = ("--pdeathsig", "KILL")
_EXEC = """[ "$PPID" = "$0" ] && exec "$@"    # otherwise the parent has died before"""
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
signal.signal(signal.SIGPIPE, signal.SIG_DFL)   # Python ignores it
ctypes.CDLL(None).prctl(1, 9)           # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(parent):         # otherwise the parent died before that line
    os.execvp(command[0], command)
"""


def with_its_parent(command: Sequence[str]) -> list[str]:
    """Return a command that Linux kills when this process ends, killed or not.

    Start it in the main thread: the kernel ties it to the thread.
    """
    if sys.platform != "linux":
        return list(command)
    return [*_wrapper(), str(os.getpid()), *command]


@functools.cache
def _wrapper() -> tuple[str, ...]:
    setpriv, shell = shutil.which("setpriv"), shutil.which("sh")
    if setpriv and shell:
        harmless = [setpriv, *_OPTIONS, shell, "-c", ":"]
        tried = subprocess.run(harmless, check=False, capture_output=True)  # noqa: S603
        if tried.returncode == 0:
            return (setpriv, *_OPTIONS, shell, "-c", _EXEC)
    return (sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT)


class Process:
    """A program in a process group of its own, with its output in a file.

    Not thread-safe. Its attributes may change while it does not run.

    Attributes:
        words: The program and its arguments.
        log_file: The file that gets what it prints.
        is_paused: Whether `pause` has stopped it.

    Args:
        name: Its name in errors.
        command: The program, as a path or a name on PATH, and its arguments.
        log: The file that gets what it prints; each start appends to it.
        ready: The text in its output by which it says that it is ready.
        environment: Variables on top of this process's.
        **options: More arguments of `subprocess.Popen`, such as ``cwd``.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        ready: str = "",
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.words = command
        self.log_file = log
        self.ready_text = ready
        self.environment = dict(environment or {})
        self.is_paused = False
        self._popen_options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._log_start = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    # -- look --------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The id of the process, also after its end.

        Raises:
            RedlockError: It was never started.
        """
        return self._started().pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit code; negative for a signal, None before the end."""
        return None if self._process is None else self._process.poll()

    def logs(self) -> str:
        """Return what it has printed since its first start."""
        return self._read_log(0)

    def logs_since_start(self) -> str:
        """Return what it has printed since its last start."""
        return self._read_log(self._log_start)

    # -- start and end -------------------------------------------------------------

    def start(self) -> None:
        """Start the program and return at once. Nothing happens if it runs.

        Raises:
            OSError: There is no such program.
            RedlockError: This is Windows, which cannot pause programs or end them
                with their children.
        """
        if sys.platform == "win32":
            raise RedlockError(
                f"{self!r} was not started: it needs signals and process groups, which "
                "Windows does not have. Start it in WSL, in a container or on another "
                "machine."
            )
        if self.is_running:
            return
        command = list(self.words)
        self._owner = os.getpid()
        main_thread = threading.get_native_id() == self._owner
        # A program that runs as another user may not be able to read this Python.
        if main_thread and "user" not in self._popen_options:
            command = with_its_parent(command)
        with self.log_file.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(  # noqa: S603  (the caller's own program)
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
                **self._popen_options,
            )

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        """Wait until the program has printed its ready text.

        Raises:
            RedlockError: It ended, or did not print the text in time. The message
                ends with its log.
        """
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        while self.ready_text not in (log := self.logs_since_start()):
            state = f"did not print {self.ready_text!r} within {seconds:g} s"
            if not self.is_running:
                state = f"ended with code {self.returncode} before it was ready"
            elif SYSTEM_CLOCK.monotonic() < deadline:
                SYSTEM_CLOCK.sleep(_POLL_EVERY)
                continue
            end = log[-_SHOWN:].strip()
            raise RedlockError(f"{self!r} {state}. Its log ends with:\n{end}")

    def signal(self, number: int) -> None:
        """Send a signal to the process, and not to its children."""
        self._started().send_signal(number)

    def pause(self) -> None:
        """Stop the process and its children (SIGSTOP); return when it is stopped."""
        self._signal_group("SIGSTOP")
        self._wait_for_stop()
        self.is_paused = True

    def resume(self) -> None:
        """Let the process and its children go on (SIGCONT)."""
        self._signal_group("SIGCONT")
        self.is_paused = False

    def kill(self) -> None:
        """End the process and its children at once (SIGKILL), paused or not."""
        self.is_paused = False
        if self._process is not None:
            self._signal_group("SIGKILL")
            self._process.wait()

    def has_ended(self) -> bool:
        """Tell whether the process has ended, and all its children."""
        return not self.is_running and not self._group_exists()

    def wait(self, seconds: float = 30.0) -> None:
        """Wait for the end of the process and of all its children.

        Raises:
            RedlockError: One of them has not ended in time.
        """
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        while not self.has_ended():
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise RedlockError(f"{self!r} has not ended within {seconds:g} s.")
            SYSTEM_CLOCK.sleep(_POLL_EVERY)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RedlockError(f"{self!r} was never started. Start it first.")
        return self._process

    def _wait_for_stop(self) -> None:
        if sys.platform == "linux" and self.is_running:
            flags = os.WSTOPPED | os.WEXITED | os.WNOWAIT
            os.waitid(os.P_PID, self._started().pid, flags)

    def _signal_group(self, name: str) -> None:
        if sys.platform == "win32" or os.getpid() != self._owner:
            return  # nothing was started, or a fork does not own the process
        pid = self._started().pid
        if self.returncode is not None and _exists(pid):  # the id was reused
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, getattr(signal, name))

    def _group_exists(self) -> bool:
        """Tell whether a process of the group is left. Call it after the leader's end.

        Orphans of the group become children of this process if it is a subreaper.
        """
        if sys.platform == "win32" or self._process is None:
            return False
        pid = self._process.pid
        if _exists(pid):  # the id was reused
            return False
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(pid, 0)
        except (ProcessLookupError, PermissionError):  # macOS refuses for zombies
            return False
        return True

    def _read_log(self, start: int) -> str:
        if not self.log_file.is_file():
            return ""
        return self.log_file.read_bytes()[start:].decode(errors="replace")


def stop(*processes: Process, within: float = 8.0) -> list[Process]:
    """End processes by SIGTERM, and after ``within`` seconds by SIGKILL.

    Returns:
        Those that had to be killed.
    """
    left = [process for process in processes if process.is_running]
    for process in left:
        process.signal(signal.SIGTERM)
        process.resume()
    deadline = SYSTEM_CLOCK.monotonic() + within
    while left and SYSTEM_CLOCK.monotonic() < deadline:
        SYSTEM_CLOCK.sleep(_POLL_EVERY)
        left = [process for process in left if not process.has_ended()]
    for process in processes:
        process.kill()
    return left


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no program listened a moment ago."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
