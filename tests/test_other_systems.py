"""Windows and macOS: all modules are imported, publishing and locking work.

The tests run on Linux. They load Python and the dependencies first, as each system has
its own. Then they take away from the standard library what the other system does not
have, and load the package again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import celery_redlock
from celery_redlock.devnodes import DevNodes
from tests.harness.programs import end_of

SYSTEMS = ("darwin", "win32")

PRELUDE = """
import ctypes, importlib, io, os, pathlib, pkgutil, select, selectors, signal, socket
import sys, time, warnings

import django
from django.conf import settings

system = sys.argv[1]
# Names of modules that Linux has and the other system has not.
NAMES = {
    os: "sched_getaffinity sched_setaffinity eventfd memfd_create pidfd_open",
    select: "epoll",
    selectors: "EpollSelector",
    signal: "SIGRTMIN SIGRTMAX SIGPOLL sigtimedwait",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK TCP_USER_TIMEOUT AF_NETLINK SO_PEERCRED",
    time: "CLOCK_BOOTTIME CLOCK_TAI",
}
WINDOWS = {
    os: "fork forkpty register_at_fork killpg setsid setpgid getpgid getpgrp getuid "
        "geteuid getgid waitid wait WNOHANG WNOWAIT WSTOPPED WEXITED P_PID uname "
        "mkfifo sysconf getloadavg chown O_CLOEXEC O_NONBLOCK set_blocking nice",
    select: "poll",
    selectors: "PollSelector",
    signal: "SIGUSR1 SIGUSR2 SIGKILL SIGSTOP SIGCONT SIGCHLD SIGHUP SIGALRM SIGQUIT "
            "setitimer alarm pause pthread_kill pthread_sigmask sigwait siginterrupt",
    socket: "AF_UNIX MSG_DONTWAIT MSG_NOSIGNAL",
    time: "CLOCK_MONOTONIC CLOCK_REALTIME clock_gettime clock_gettime_ns tzset",
}
MODULES = "fcntl grp pwd resource termios tty pty syslog readline _posixsubprocess"


def names():
    import celery_redlock
    found = pkgutil.walk_packages(celery_redlock.__path__, "celery_redlock.")
    return ["celery_redlock", *sorted(module.name for module in found)]


def select_as_windows_does(readers, writers, errors, timeout=None):
    if not (readers or writers or errors):
        raise OSError(10022, "An invalid argument was supplied")
    return as_here(readers, writers, errors, timeout)


def socketpair_of_windows():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return listener.accept()[0], client


# Load what the package imports, and forget the package.
modules = names()
apps = ["admin", "auth", "contenttypes", "messages", "sessions"]
apps = [f"django.contrib.{app}" for app in apps]
settings.configure(INSTALLED_APPS=[*apps, "celery_redlock.contrib.django"])
django.setup()
for name in modules:
    importlib.import_module(name)
import celery.fixups.django, celery.loaders.default, kombu.transport.memory
import kombu.transport.virtual, redis.connection
for name in [name for name in sys.modules if name.split(".")[0] == "celery_redlock"]:
    del sys.modules[name]

absent = [NAMES, WINDOWS] if system == "win32" else [NAMES]
for table in absent:
    for module, words in table.items():
        for word in words.split():
            vars(module).pop(word, None)
if system == "win32":
    as_here = select.select
    selectors.SelectSelector._select = staticmethod(
        lambda r, w, _, timeout=None: select_as_windows_does(r, w, (), timeout)
    )
    selectors.DefaultSelector = selectors.SelectSelector
    socket.socketpair = socketpair_of_windows
    sys.modules.update(dict.fromkeys(MODULES.split()))
else:
    selectors.DefaultSelector = selectors.PollSelector
real_open, real_exists = io.open, pathlib.Path.exists


def open_without_proc(file, *args, **options):
    if str(file).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return real_open(file, *args, **options)


io.open = open_without_proc
pathlib.Path.exists = lambda path: (
    not str(path).startswith("/proc") and real_exists(path)
)
ctypes.CDLL = None
sys.platform = system

warnings.filterwarnings("ignore", "Model .* was already registered")
for name in modules:
    importlib.import_module(name)
print("imported", len(modules))
"""

PUBLISHING = """
import threading

from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery_redlock import LockLost, current_lease, singleton_task, runtime_of
from celery_redlock.testing import assert_skipped, held_elsewhere, lose_lock

app = Celery("elsewhere", broker="memory://", backend="cache+memory://")
app.conf.update(
    redlock_nodes=sys.argv[2:], redlock_node_timeout=4.0, redlock_eager=True,
    worker_hijack_root_logger=False,
)


@singleton_task(app=app, key="{key}", unique_while="queued_or_running")
def work(key):
    current_lease().ensure()
    return key


began = threading.Event()


@singleton_task(app=app, key="{key}")
def long(key):
    began.set()
    while True:
        time.sleep(0.001)


first, second = work.delay("a"), work.delay("a")
print("published", first.conflict, second.id == first.id)
print("ran", work.apply(("b",)).get())
with work.lock("c") as lease:
    print("locked", lease.votes >= 2)
with held_elsewhere(work, "c"):
    assert_skipped(work.apply(("c",)))
with start_worker(app, pool="solo", perform_ping_check=False):
    print("worked", first.get(timeout=30))
    result = long.delay("d")
    assert began.wait(30)
    lose_lock(long, "d")
    try:
        result.get(timeout=30)
    except LockLost:
        print("stopped")
runtime_of(app).redlock.close()
"""

NODES = """
from celery_redlock import RedlockError
from celery_redlock.devnodes import DevNodes

try:
    DevNodes(1, binary=sys.executable).start()
except RedlockError as error:
    print(error)
"""

UNIX_SOCKET = """
from celery_redlock import ConfigurationError, Redlock

try:
    Redlock(["unix:///tmp/a.sock"])
except ConfigurationError as error:
    print(error)
"""


def run(system: str, program: str, *words: str) -> list[str]:
    """Run a program as if on this system, and return the lines that it printed."""
    path = {"PYTHONPATH": str(Path(celery_redlock.__path__[0]).parent)}
    line = (sys.executable, "-c", PRELUDE + program, system, *words)
    return end_of(*line, variables=path).stdout.splitlines()


@pytest.mark.long
@pytest.mark.parametrize("system", SYSTEMS)
def test_all_of_the_package_works_without_linux(
    system: str, three_nodes: DevNodes
) -> None:
    """All modules load; calls are published once, locked, run and interrupted."""
    said = run(system, PUBLISHING, *three_nodes.urls)

    assert said[0].startswith("imported ")
    assert said[1:] == [
        "published None True",
        "ran b",
        "locked True",
        "worked a",
        "stopped",
    ]


@pytest.mark.long
def test_windows_refuses_what_it_does_not_have() -> None:
    """Errors name what is missing: for nodes at their start, for a setting at once."""
    _, nodes, unix_socket = run("win32", NODES + UNIX_SOCKET)

    assert "needs signals and process groups, which Windows does not have" in nodes
    assert "WSL" in nodes
    what = "names a unix socket, which Python does not have on this system"
    assert what in unix_socket
