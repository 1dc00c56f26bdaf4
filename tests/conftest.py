"""Real redis-servers for tests; no process of a test outlives the session.

A program that this machine lacks is named once, at the end of the run, with the number
of tests that were skipped for want of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import itertools
import logging
import os
import re
import secrets
import shutil
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import psutil
import pytest
import redis
from celery._state import _on_app_finalizers
from celery.app import builtins

from celery_redlock.devnodes import (
    DevNodes,
    find_redis_server,
    processes,
    redis_servers,
)
from celery_redlock.errors import RedlockError
from tests.harness.kept_nodes import IDLE, KeptNodes
from tests.harness.programs import end_of
from tests.harness.signals import handle_ignored_signals

# No test here is about time, so a busy machine must not fail one. `make test` is quick.
hypothesis.settings.register_profile("desk", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=20)
if not os.environ.get("CI"):
    hypothesis.settings.load_profile("desk")

_LAST_CHANCE = 10.0  # seconds for the last processes to end

# Each process that shares the tests has ports of its own: one of a server that is down
# for a moment must not be given to another server.
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
processes.PORTS = processes.PORTS[_PROCESS::_PROCESSES]


def missing(what: str) -> NoReturn:
    """Skip a test if this machine lacks a program; in CI, fail."""
    if os.environ.get("CI"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


# -- What is run, and what is not ----------------------------------------------

# `make test` leaves these out, with the tests that are marked `long` one by one, and CI
# the searches, which judge the protocol and the tests, not a change of the code.
_LONG = ("docker", "example", "torture/test_torture.py")  # in this folder
_SEARCHES = (
    *("model", "mutation/test_survivors.py", "partitions"),
    "torture/test_linearizability.py",
)
_TIMEOUT = 300.0  # seconds; the usual one: see pyproject.toml


def with_long(
    values: Iterable[Any], *names: str, exhaustive: Collection[str] = ()
) -> list[Any]:
    """Return parameters, of which those with these names make a test long.

    Args:
        values: The parameters.
        names: Those that make it long.
        exhaustive: Those of them that CI leaves out.
    """
    found = []
    for value in values:
        name = str(value)
        marks = [pytest.mark.long] if name in names else []
        marks += [pytest.mark.exhaustive] if name in exhaustive else []
        found.append(pytest.param(value, marks=marks, id=name))
    return found


# Until 3.12, ssl.SSLSocket._create makes its socket without a `try` that closes it. If
# the peer has reset the connection before the handshake (a server that is killed while
# a client connects), its `self.recv(1)` raises ECONNRESET, and `if e.errno not in
# (errno.ENOTCONN, errno.EINVAL): raise` leaves the socket open (Lib/ssl.py, line 1069
# in 3.11.7, 1007 in 3.12.1). 3.13 closes it, and there a leak of ours is found.
_LEFT_OPEN = r"Exception ignored in. <ssl\.SSLSocket"


# redis-py 5.0 leaves a socket open that it cannot connect, or give TLS.
_PLAIN_LEFT_OPEN = r"Exception ignored in. <socket\.socket"


def pytest_configure(config: pytest.Config) -> None:
    """Ignore what CPython and redis-py leave open."""
    left_open = [_LEFT_OPEN] * (sys.version_info < (3, 13))
    left_open += [_PLAIN_LEFT_OPEN] * redis.__version__.startswith("5.0.")
    warning = "pytest.PytestUnraisableExceptionWarning"
    for message in left_open:
        config.addinivalue_line("filterwarnings", f"ignore:{message}:{warning}")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Mark the tests of whole folders as long, and begin with the longest tests."""
    for item in items:
        for mark in _marks_of(item.path):
            item.add_marker(mark)
    yield  # those that are not to run are taken out
    if leaves_long_out(config):
        items.sort(key=lambda item: _turn_of(item.nodeid))
        return
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = longest_first(items, workers)


@functools.cache
def _marks_of(file: Path) -> list[str]:
    here = Path(__file__).parent
    if any(file.is_relative_to(here / name) for name in _SEARCHES):
        return ["long", "exhaustive"]
    return ["long"] if any(file.is_relative_to(here / name) for name in _LONG) else []


def longest_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the tests so that each process of pytest-xdist begins with its longest.

    Otherwise all wait in the end for one test that began late. Each process gets one
    piece of the list at first (``--dist worksteal``). A long test that takes minutes
    has a `timeout` of more than the usual 300 s. The others stay mixed: those that need
    a processor run beside those that wait.
    """
    patience = {item: _patience_with(item) for item in items}
    long = sorted(
        (item for item in items if patience[item] > _TIMEOUT),
        key=lambda item: -patience[item],
    )
    others = iter([item for item in items if patience[item] <= _TIMEOUT])
    dealt: list[pytest.Item] = []
    for worker in range(workers):
        piece = long[worker::workers]
        dealt += piece
        dealt += itertools.islice(others, max(0, len(items) // workers - len(piece)))
    return [*dealt, *others]


def leaves_long_out(config: pytest.Config) -> bool:
    """Tell whether this is `make test`, which need not look at long tests."""
    return bool(config.getoption("markexpr") == "not long")


# A test that is long in part has its mark at the part.
_ALL_ARE_LONG = re.compile(r"^pytestmark = .*\bmark\.long\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file whose tests are all left out."""
    if not leaves_long_out(config) or not collection_path.match("test_*.py"):
        return None
    long = _marks_of(collection_path) or _ALL_ARE_LONG.search(
        collection_path.read_text(encoding="utf-8")
    )
    return True if long else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let processes of pytest-xdist share the work of importing the tests.

    All import all of them. In the same order, each would compile each file, for pytest
    takes half of a fresh checkout's collecting to rewrite the assertions. So each
    begins with another file, and finds what the others have compiled. The process that
    starts them imports none.

    The garbage collector would walk through some hundred thousand objects that stay
    again and again: a third of the time here, and later in each test that forks.
    """
    gc.disable()
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        number = int(worker.removeprefix("gw"))
        for name in rotated(_test_modules(session.config), number):
            # pytest imports it again, and says what is wrong.
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(name)
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def rotated(values: list[str], worker: int) -> list[str]:
    """Return all values, beginning with the share of this process of pytest-xdist."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    first = len(values) * worker // workers
    return values[first:] + values[:first]


def _test_modules(config: pytest.Config) -> list[str]:
    root = config.rootpath
    paths = [root / argument.partition("::")[0] for argument in config.args]
    files = {file for path in paths for file in [path, *path.rglob("test_*.py")]}
    return sorted(
        ".".join(file.relative_to(root).with_suffix("").parts)
        for file in files
        if file.suffix == ".py"
        and file.is_relative_to(root)
        and not pytest_ignore_collect(file, config)
    )


# Folder -> how many processes run its tests in `make test`. Each starts servers and
# workers of its own, which takes seconds.
_GROUPS = {"tests/worker": 3, "tests/contrib": 2, "tests/stores": 1, "tests/beat": 1}
# They wait most of the time, and take the longest. Other groups that wait begin later,
# so that the processors have work.
_FIRST = ("tests/worker/", "tests/stores/")
# Quick tests: one process runs those of a file, which share what they have parsed or
# set up. Its work is dealt out once, for with thousands of pieces pytest-xdist takes
# time that grows with their square.
_BY_FILE = (
    *("tests/contract/", "tests/simulation/", "tests/test_", "tests/torture/"),
    *("tests/unit/", "tests/web/"),
)
# They wait for nothing, and keep all processes busy while the last others wait.
_LAST = ("tests/contract/", "tests/unit/lock/")


def _turn_of(test: str) -> int:
    """Return when the test begins."""
    if test.startswith(_FIRST):
        return 0
    return 2 if test.startswith(_LAST) else 1


def group_of(test: str) -> str:
    """Return what names the tests that one process runs with this one."""
    file, _, _ = test.partition("::")
    for folder, groups in _GROUPS.items():
        if file.startswith(f"{folder}/"):
            return f"{folder} {zlib.crc32(file.encode()) % groups}"
    return file if file.startswith(_BY_FILE) else test


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadscope``, let few processes start the servers of a folder."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415  (it may be absent)

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


def _patience_with(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark and item.get_closest_marker("long") else 0.0


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each reason for skipped tests once."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2] for report in skipped)
    if reasons:
        terminalreporter.section("not tested on this machine")
    for reason, count in sorted(reasons.items()):
        tests = "1 test" if count == 1 else f"{count} tests"
        terminalreporter.line(f"{tests}: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(autouse=True)
def root_log_level() -> Iterator[None]:
    """Restore the level of the root logger: a command of Celery changes it."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture(autouse=True)
def logs_of_other_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep out of ``caplog`` what threads of other tests log: they may end late."""
    if "caplog" not in request.fixturenames or sys.platform != "linux":
        yield
        return
    threads = {int(entry.name) for entry in Path("/proc/self/task").iterdir()}
    others = threads - {threading.get_native_id()}

    def is_ours(_: logging.LogRecord) -> bool:
        return threading.get_native_id() not in others

    handler = request.getfixturevalue("caplog").handler
    handler.addFilter(is_ours)
    yield
    handler.removeFilter(is_ours)


# -- Servers -------------------------------------------------------------------


@functools.cache
def _servers_by_version() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in redis_servers():
        said = end_of(path, "--version").stdout
        found.setdefault(said.partition("v=")[2].partition(" ")[0], path)
    return found


def server_parameters() -> list[Any]:
    """Return a parameter for each version of a server here; all but one are long."""
    versions = _servers_by_version() or {"no-server": ""}
    return [
        pytest.param(path, id=version, marks=[pytest.mark.long] if index else [])
        for index, (version, path) in enumerate(versions.items())
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat a test that is marked ``every_server`` for each version there is."""
    if metafunc.definition.get_closest_marker("every_server"):
        metafunc.parametrize(
            "redis_server", server_parameters(), indirect=True, scope="session"
        )


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> str:
    """Give the path of a redis-server; without one, skip here and fail in CI."""
    try:
        return getattr(request, "param", None) or find_redis_server()
    except RedlockError as error:
        missing(str(error))


@pytest.fixture
def start_nodes(redis_server: str) -> Iterator[Callable[..., DevNodes]]:
    """Give a function that starts `DevNodes` for this test: break them at will."""
    started: list[DevNodes] = []

    def start(count: int = 5, **options: Any) -> DevNodes:
        nodes = DevNodes(count, **{"binary": redis_server, **options})
        started.append(nodes)
        nodes.start()
        return nodes

    yield start
    for nodes in started:
        nodes.stop()


@pytest.fixture
def three_nodes(start_nodes: Callable[..., DevNodes]) -> DevNodes:
    """Give three nodes for this test alone: break them at will."""
    return start_nodes(3)


@pytest.fixture
def five_nodes(start_nodes: Callable[..., DevNodes]) -> DevNodes:
    """Give five nodes for this test alone: break them at will."""
    return start_nodes(5)


@pytest.fixture(scope="session")
def kept_nodes(redis_server: str) -> Iterator[KeptNodes]:
    """Give servers that tests of one process use one after another."""
    with KeptNodes(redis_server) as kept:
        yield kept


@pytest.fixture
def lend_nodes(
    kept_nodes: KeptNodes, start_nodes: Callable[..., DevNodes]
) -> Iterator[Callable[..., DevNodes]]:
    """Give a function that lends nodes to this test: break them at will.

    It starts new ones where it is given options of `DevNodes`. What connects to them
    has to be closed before the test ends.
    """
    lent: list[DevNodes] = []

    def lend(count: int = 3, **options: Any) -> DevNodes:
        if options:
            return start_nodes(count, **options)
        lent.append(kept_nodes.take(count))
        return lent[-1]

    yield lend
    for nodes in lent:
        kept_nodes.give_back(nodes)


@pytest.fixture(scope="session")
def shared_nodes(redis_server: str) -> Iterator[DevNodes]:
    """Give five nodes that all tests share: use `key`, and leave them as they are."""
    with DevNodes(5, binary=redis_server, options=IDLE) as nodes:
        yield nodes


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """Give a key that no other test uses."""
    name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_"))
    return f"{name[:60]}-{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Give files with a certificate for 127.0.0.1, signed by itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        missing("openssl is not on PATH; it makes the certificate")
    folder = tmp_path_factory.mktemp("certificate")
    files = folder / "certificate.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    output = ["-out", str(files[0]), "-keyout", str(files[1])]
    end_of(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *output)
    return files


# -- Celery ------------------------------------------------------------------------


@pytest.fixture
def own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide shared tasks of other tests: Celery adds them to every later app."""
    homes = {builtins.__name__, "celery_redlock.effects.outbox"}

    def home(finalizer: Any) -> str:
        """Return the module of what a finalizer registers, or its own."""
        shared = inspect.getclosurevars(finalizer).nonlocals.get("fun", finalizer)
        return str(shared.__module__)

    kept = {f for f in _on_app_finalizers if home(f) in homes}
    monkeypatch.setattr("celery._state._on_app_finalizers", kept)


# -- Nothing is left -----------------------------------------------------------


@pytest.fixture
def apps_are_closed() -> Iterator[None]:
    """Close the connections of all apps, for tests whose apps end with them.

    The garbage collector would find what a dropped app leaves open in a later test.
    """
    yield
    runtimes = sys.modules.get("celery_redlock.app.runtime")
    for runtime in list(runtimes._runtimes) if runtimes else ():  # noqa: SLF001
        for redlock in runtime._service.values():  # noqa: SLF001
            redlock.close()


@pytest.fixture(scope="session", autouse=True)
def _children_ignore_no_signal() -> None:
    """Let children start with the signals of a terminal, however pytest was started."""
    handle_ignored_signals()


@pytest.fixture(scope="session", autouse=True)
def _every_process_ends() -> Iterator[None]:
    """Fail the session if a process that it started, directly or not, is left."""
    _adopt_orphans()
    yield
    deadline = time.monotonic() + _LAST_CHANCE
    while (left := _descendants()) and time.monotonic() < deadline:
        time.sleep(0.05)
    said = [f"{process.pid}: {' '.join(process.cmdline())}" for process in left]
    for process in left:
        process.kill()
    assert not left, "processes were left behind:\n" + "\n".join(said)


def _adopt_orphans() -> None:
    """Become the parent of processes whose parent ends, where the system can do it."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def _descendants() -> list[psutil.Process]:
    """Return the living processes below this one that ought to have ended."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            # multiprocessing keeps one of these until the interpreter exits.
            tracker = "multiprocessing.resource_tracker" in " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and not tracker:
                found.append(process)
    return found
