"""``redlock run KEY -- command``: a command under a lock, without an app."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import celery_redlock.cli.run as run_module
from celery_redlock.cli.run import _Child
from celery_redlock.devnodes import DevNodes
from celery_redlock.devnodes.processes import Process
from celery_redlock.errors import LockHeld
from celery_redlock.locks.redlock import Redlock
from tests.cli.project import FOREIGN, Project, Run, run_here
from tests.conftest import with_long
from tests.harness.processes import is_alive
from tests.harness.programs import end_of
from tests.harness.waiting import until
from tests.nodes import support
from tests.nodes.support import client, until_nothing_is_left

TTL = 3.0  # seconds: renewed each second
# Says its process id, and what it is told; ends by itself after a minute.
PATIENT = """
trap 'echo told; exit 7' TERM
echo "pid $$"
for _ in $(seq 600); do sleep 0.1; done
"""
STUBBORN = """
trap 'echo told' TERM
echo "pid $$"
for _ in $(seq 600); do sleep 0.1; done
"""
# Its work is done by another program, as that of most scripts. It tidies up, too.
DELEGATING = """
sh -c 'trap "sleep 0.3; exit" TERM; for _ in $(seq 600); do sleep 0.1; done' &
echo "pid $!"
wait
"""


def words(nodes: DevNodes | list[str], *more: str) -> list[str]:
    """Return the command line of a command that knows the nodes and no app."""
    urls = nodes if isinstance(nodes, list) else nodes.urls
    command, *rest = more
    options = [word for url in urls for word in ("--node", url)]
    return [sys.executable, "-m", "celery", "redlock", command, *options, *rest]


@pytest.fixture
def ended(
    shared_nodes: DevNodes,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Run]:
    """Give a function that runs a command to its end, in this process."""
    monkeypatch.setattr("celery_redlock.wire.url._NODE_TIMEOUT", support.PATIENT)

    def run(*more: str, nodes: DevNodes | list[str] = shared_nodes) -> Run:
        line = words(nodes, *more)
        app = Celery("default", set_as_current=False)
        run = run_here(app, *line[line.index("redlock") + 1 :])
        of_command = capfd.readouterr()
        return Run(run.code, run.out + of_command.out, run.err + of_command.err)

    return run


@pytest.fixture
def start(
    shared_nodes: DevNodes, key: str, tmp_path: Path
) -> Callable[..., tuple[Process, int]]:
    """Give a function that starts a shell script under the lock of `key`.

    It returns the process that holds the lock, and the id of the script's process.
    """

    def begin(script: str, *options: str) -> tuple[Process, int]:
        more = ["--ttl", str(TTL), "--wait", "60", *options, key, "sh", "-c", script]
        process = Process(
            "run", words(shared_nodes, "run", *more), log=tmp_path / "log", ready="pid "
        )
        process.start()
        process.wait_until_ready()
        said = until(lambda: process.logs().partition("pid ")[2].split("\n")[0])
        return process, int(said)

    return begin


@pytest.fixture
def redlock(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give another client of the nodes."""
    with client(shared_nodes) as redlock:
        yield redlock


@pytest.mark.parametrize("grace", ["nan", "inf", "-1"])
def test_grace_that_is_no_time_is_wrong_usage(
    ended: Callable[..., Run], key: str, grace: str
) -> None:
    """A timer cannot wait for it: SIGKILL would never come. Nothing is locked."""
    run = ended("run", key, "--grace", grace, "--", "echo", "it ran")

    assert run.code == 2
    assert "--grace" in run.err
    assert "it ran" not in run.out


@pytest.mark.long
def test_options_may_follow_the_key(shared_nodes: DevNodes, key: str) -> None:
    """Those of the command, behind ``--``, are its own."""
    command = ("sh", "-c", "exit $1", "--wait", "3")

    line = words(shared_nodes, "run", key, "--wait", "1", "--ttl=5", "--", *command)

    end_of(*line, code=3)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143)],
)
def test_command_runs_and_gives_its_exit_code(
    shared_nodes: DevNodes,
    ended: Callable[..., Run],
    key: str,
    script: str,
    code: int,
) -> None:
    """The command has its key and its fence, and its output is all there is."""
    told = f'echo "$REDLOCK_KEY $((REDLOCK_FENCE > 0))"; {script}'

    run = ended("run", key, "--", "sh", "-c", told)

    assert (run.code, run.out, run.err) == (code, f"{key} 1\n", "")
    until_nothing_is_left(shared_nodes, key)


@pytest.mark.long
def test_command_is_a_usual_process(shared_nodes: DevNodes, key: str) -> None:
    """It reads stdin, and ends when nothing reads what it writes."""
    line = words(shared_nodes, "run", key, "sh", "-c", "cat; yes; exit 1")

    piped = f"{' '.join(map(repr, line))} | head -n 3"

    run = end_of("sh", "-c", piped, input="one\ntwo\n")

    assert run.stdout == "one\ntwo\ny\n"


def test_unknown_command_locks_nothing(ended: Callable[..., Run], key: str) -> None:
    """It ends as in a shell, before the nodes are asked."""
    run = ended("run", key, "no-such-command-here")

    assert run.code == 127
    assert run.err.startswith("Error: There is no command 'no-such-command-here'")


@pytest.mark.parametrize(("options", "code"), [((), 75), (("--held-code", "0"), 0)])
def test_held_lock_is_one_line_and_a_code(
    redlock: Redlock,
    ended: Callable[..., Run],
    key: str,
    options: tuple[str, ...],
    code: int,
) -> None:
    """The command does not run; cron may take the code for a success."""
    lease = redlock.acquire(key)

    run = ended("run", *options, key, "echo", "it ran")

    assert (run.code, run.out) == (code, "")
    assert run.err.count("\n") == 1
    assert run.err.startswith(f"Error: The lock '{key}' is held by ")
    assert run.err.endswith(" The command did not run.\n")
    redlock.release(lease)


def test_command_waits_for_the_lock(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """``--wait`` waits as long as it says; a release ends the wait."""
    lease = redlock.acquire(key)
    line = words(shared_nodes, "run", "--wait", "60", key, "echo", "it ran")
    waiting = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)  # noqa: S603
    until(lambda: redlock.inspect(key).holder)
    redlock.release(lease)

    out, _ = waiting.communicate(timeout=60)

    assert (waiting.returncode, out) == (0, "it ran\n")


def test_too_few_nodes_are_a_code_of_their_own(
    ended: Callable[..., Run], key: str
) -> None:
    """The command does not run."""
    run = ended("run", key, "echo", "it ran", nodes=["redis://127.0.0.1:1"])

    assert (run.code, run.out) == (69, "")
    assert "The command did not run." in run.err


def test_sigterm_ends_the_command_and_frees_the_lock(
    shared_nodes: DevNodes,
    redlock: Redlock,
    key: str,
    start: Callable[..., tuple[Process, int]],
) -> None:
    """The lock is renewed beyond its ttl; the command tidies up under it."""
    process, _ = start(PATIENT)
    with pytest.raises(LockHeld):
        redlock.acquire(key, wait=1.5 * TTL)

    process.signal(signal.SIGTERM)
    process.wait()

    assert process.returncode == 7
    assert process.logs().endswith("told\n")
    until_nothing_is_left(shared_nodes, key)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param(PATIENT, 7, id="patient"),
        pytest.param(STUBBORN, 137, id="stubborn", marks=pytest.mark.long),
    ],
)
def test_lost_lock_ends_the_command(
    shared_nodes: DevNodes,
    key: str,
    start: Callable[..., tuple[Process, int]],
    script: str,
    code: int,
) -> None:
    """It gets SIGTERM, and SIGKILL after ``--grace``; the code tells of the loss."""
    process, pid = start(script, "--grace", "0.5")
    for node in shared_nodes.nodes:
        node.command("SET", f"redlock:lock:{key}", FOREIGN, "PX", 30_000)

    process.wait()

    assert process.returncode == 76
    assert not is_alive(pid)
    assert "told\n" in process.logs()
    assert process.logs().endswith(f" got SIGTERM, and ended with {code}.\n")


def test_exit_code_that_no_process_can_have_is_refused(project: Project) -> None:
    """A shell would get another one: 44 in place of 300."""
    run = project.redlock("run", "k", "--held-code", "300", "--", "true")

    assert run.code == 2
    assert "300 is not in the range 0<=x<=255" in run.err


def test_command_that_ended_before_the_loss_is_not_said_to_have_got_a_signal() -> None:
    """The process may have been frozen meanwhile, and note the loss late."""
    child = _Child([sys.executable, "-c", "raise SystemExit(3)"], grace=10.0)
    child.run({})

    child.end()

    assert child.end_text == "The command had ended by itself, with 3."


@contextlib.contextmanager
def reaping(orphan: int) -> Iterator[None]:
    """Let a process that is orphaned in the block end whole, as init does."""

    def is_reaped() -> bool:
        with contextlib.suppress(ChildProcessError):  # it is no orphan yet
            return os.waitpid(orphan, os.WNOHANG)[0] == orphan
        return False

    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(until, is_reaped, what="the end of the orphan")
        yield
        end.result()


@pytest.mark.parametrize("is_lost", with_long([False, True], "True"))
def test_programs_that_the_command_started_end_with_it(
    shared_nodes: DevNodes,
    key: str,
    start: Callable[..., tuple[Process, int]],
    *,
    is_lost: bool,
) -> None:
    """None of them works beside the next holder."""
    process, pid = start(DELEGATING)
    if is_lost:
        for node in shared_nodes.nodes:
            node.command("SET", f"redlock:lock:{key}", FOREIGN, "PX", 30_000)
    else:
        process.signal(signal.SIGTERM)

    with reaping(pid):
        process.wait()

    assert process.returncode == (76 if is_lost else 143)
    assert not is_alive(pid)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no process groups")
def test_signal_ends_a_command_that_is_just_being_started(
    ended: Callable[..., Run], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command runs before its parent knows it, and never beside the next holder."""
    started = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            if options.get("start_new_session"):
                started.append(self.pid)
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(run_module, "_has_terminal", lambda: False)
    monkeypatch.setattr(subprocess, "Popen", Started)
    run = ended("run", key, "--", "sleep", "60")

    assert run.code == 143
    assert not is_alive(started[0])


HEARING = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # its parent blocks it
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it masks no signals")
def test_signal_that_interrupts_no_wait_reaches_the_command(
    ended: Callable[..., Run], key: str, tmp_path: Path
) -> None:
    """One that comes just before the wait for the command, or in another thread."""
    ready = tmp_path / "ready"
    command = (sys.executable, "-c", HEARING, str(ready))

    def tell() -> None:
        until(ready.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(tell)  # before: its thread is the one that gets the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            run = ended("run", key, "--", *command)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        told.result()

    assert run.code == 7


AT_TERMINAL = "import pty, sys; pty.spawn(sys.argv[1:])"


@pytest.mark.long
def test_command_can_ask_at_the_terminal_beside_a_pipe(
    shared_nodes: DevNodes, key: str
) -> None:
    """As programs do that ask for a password."""
    asks = ["sh", "-c", "read said < /dev/tty; echo got-$said; cat"]
    line = shlex.join(words(shared_nodes, "run", key, *asks))
    shell = [sys.executable, "-c", AT_TERMINAL, "sh", "-c", f"echo data | {line}"]

    done = subprocess.run(  # noqa: S603  (our own command)
        shell, input=b"hello\n", capture_output=True, timeout=60, check=True
    )

    assert b"got-hello\r\ndata" in done.stdout


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
def test_kill_of_the_holder_kills_the_command(
    redlock: Redlock, key: str, start: Callable[..., tuple[Process, int]]
) -> None:
    """It does not run on beside the next holder, who gets the lock after the ttl."""
    process, pid = start(STUBBORN)

    os.kill(process.pid, signal.SIGKILL)

    until(lambda: not is_alive(pid), TTL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    redlock.release(redlock.acquire(key, wait=20))


# -- Other commands without an app -------------------------------------------------


@pytest.mark.long
def test_commands_take_nodes_in_place_of_an_app(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """A user without Celery starts a deployment, and looks at it."""
    nodes = start_nodes(3, initialize=False)

    def out(*more: str) -> str:
        return end_of(*words(nodes, *more)).stdout

    assert out("init", "--yes").endswith("All nodes vote now: 3.\n")
    assert out("run", "k", "echo", "it ran") == "it ran\n"
    assert out("ls").startswith("0 locks held")
    assert "3" in out("doctor", "--json")


def test_command_without_an_app_and_without_nodes_names_both(
    ended: Callable[..., Run],
) -> None:
    """The error says how to name either."""
    run = ended("ls", nodes=[])

    assert run.code == 2
    assert "-A: `celery -A proj redlock ls ...`, or name its nodes: `--node" in run.err
