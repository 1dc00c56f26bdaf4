"""The host of the scripts: threads, greenlets, forks and exceptions within a script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.scripts import ALL_SCRIPTS, Script, host
from celery_redlock.testing.memory_node import MemoryKeyspace

STORE = "from celery_redlock.stores.connection import store_of; store_of('{}://')"
READS = Script("reads", "return {ARGV[1], redis.call('GET', KEYS[1]), ARGV[1]}")


class Keys(MemoryKeyspace):
    """Keys in memory; something else happens while a script waits for one."""

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        super().__init__(SYSTEM_CLOCK, "run-id", lambda *_: 0)
        self.meanwhile = meanwhile

    def get(self, name: bytes) -> bytes | None:
        """Return a string, after that."""
        self.meanwhile()
        return super().get(name)


def read(keys: Keys, word: bytes = b"ours") -> Any:
    """Run a script that asks for a key in its middle."""
    return host.run(READS, [b"name"], [word], keys)


def test_script_within_a_script_has_its_own_runtime() -> None:
    """A store that runs a script while it loads keys for another disturbs neither."""
    inner: list[Any] = []
    outer = Keys(lambda: inner.append(read(Keys(lambda: None), b"inner")))

    assert read(outer) == [b"ours", None, b"ours"]
    assert inner == [[b"inner", None, b"inner"]]


def test_greenlets_that_switch_within_scripts_do_not_meet() -> None:
    """A green driver switches while it loads; the scripts go on in any order."""
    greenlet: Any = pytest.importorskip("greenlet")
    main = greenlet.getcurrent()
    some = {
        word: greenlet.greenlet(lambda word=word: read(Keys(main.switch), word))
        for word in (b"a", b"b", b"c")
    }
    for one in some.values():
        one.switch()

    for word in (b"b", b"a", b"c"):
        assert some[word].switch() == [word, None, word]


def test_threads_run_scripts_at_once() -> None:
    """Each script waits for the other one in its middle."""
    both = threading.Barrier(2)
    replies: dict[bytes, Any] = {}

    def use(word: bytes) -> None:
        replies[word] = read(Keys(lambda: both.wait(10)), word)

    threads = [threading.Thread(target=use, args=(word,)) for word in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert replies == {word: [word, None, word] for word in (b"a", b"b")}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_exception_of_a_store_passes_as_it_is(error: type[BaseException]) -> None:
    """The caller of the script sees it, and later scripts run as before."""
    raised = error("in the store")

    def fail() -> None:
        raise raised

    with pytest.raises(error) as caught:
        read(Keys(fail))

    assert caught.value is raised
    assert read(Keys(lambda: None)) == [b"ours", None, b"ours"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_of_a_fork_within_a_script_runs_scripts() -> None:
    """It finds no runtime in which the thread of its parent was."""
    is_within, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        is_within.set()
        assert may_go_on.wait(10)

    thread = threading.Thread(target=lambda: read(Keys(wait)))
    thread.start()
    assert is_within.wait(10)
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os._exit(int(read(Keys(lambda: None)) != [b"ours", None, b"ours"]))
        os._exit(2)
    _, status = os.waitpid(child, 0)
    may_go_on.set()
    thread.join()

    assert os.waitstatus_to_exitcode(status) == 0


def test_keyspace_is_let_go_after_a_script() -> None:
    """A runtime in the pool keeps no keys of a store alive."""
    read(Keys(lambda: None))

    assert not any(hasattr(runtime, "_keys") for runtime in host._free)  # noqa: SLF001


def test_scripts_are_compiled_once() -> None:
    """A runtime that has run a script keeps it."""
    keys = Keys(lambda: None)
    read(keys)
    (runtime,) = [one for one in host._free if READS.sha in one._compiled][:1]  # noqa: SLF001
    compiled = runtime._compiled[READS.sha]  # noqa: SLF001

    runtime.run(READS, [b"name"], [b""], keys)

    assert runtime._compiled[READS.sha] is compiled  # noqa: SLF001


def test_all_commands_of_the_scripts_are_known() -> None:
    """The host has each of them, and no other one."""
    known = {*host._COMMANDS, *host._LISTS}  # noqa: SLF001
    used = {
        part.partition("'")[0].lower()
        for script in ALL_SCRIPTS
        for call in ("redis.call('", "redis.pcall('")
        for part in script.source.split(call)[1:]
    }

    assert used == known


def run_with_comma(tmp_path: Path, program: str) -> str:
    """Run a program in a process whose numbers have a comma; return what it prints."""
    localedef = shutil.which("localedef")
    made = tmp_path / "de_DE.UTF-8"
    if localedef:
        subprocess.run(  # noqa: S603  (a folder of ours)
            [localedef, "-i", "de_DE", "-f", "UTF-8", str(made)],
            capture_output=True,
            check=False,
        )
    if not (made / "LC_NUMERIC").exists():
        pytest.skip("localedef, or its source of the locale de_DE, is not installed")
    head = 'import locale\nlocale.setlocale(locale.LC_NUMERIC, "de_DE.UTF-8")\n'
    return subprocess.run(  # noqa: S603  (our own program)
        [sys.executable, "-c", head + program],
        env={**os.environ, "LOCPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.long
def test_numbers_have_a_point_where_the_process_has_a_comma(tmp_path: Path) -> None:
    """Lua reads numbers by the locale of the process. A server has a point."""
    program = """
from celery_redlock.scripts import Script
from celery_redlock.testing.memory_node import MemoryNode
half = Script("half", "return tostring(tonumber(ARGV[1]) * 2 == 3)")
print(locale.localeconv()["decimal_point"], MemoryNode().execute(half, [], ["1.5"]))
"""

    assert run_with_comma(tmp_path, program) == ", b'true'\n"


@pytest.mark.long
def test_lock_is_held_where_the_process_has_a_comma(tmp_path: Path) -> None:
    """The max_ttl of the nodes may be no whole number of seconds."""
    program = """
from celery_redlock.errors import LockHeld
from celery_redlock.testing import FakeNodes
nodes = FakeNodes(3)
nodes.redlock(ttl=2.0, max_ttl=2.5).acquire("k")
try:
    nodes.another_client().redlock(ttl=2.0, max_ttl=2.5).acquire("k")
except LockHeld:
    print("held")
"""

    assert run_with_comma(tmp_path, program) == "held\n"


@pytest.mark.parametrize(
    ("use", "extra"),
    [
        ("from celery_redlock.testing import MemoryNode; MemoryNode()", "testing"),
        (STORE.format("postgresql"), "postgresql"),
        (STORE.format("etcd"), "etcd"),
        (STORE.format("zookeeper"), "zookeeper"),
    ],
)
def test_missing_lupa_names_the_extra(use: str, extra: str) -> None:
    """Locks on Redis nodes work without it: they run no script in this process."""
    redis = "from celery_redlock.locks.redlock import Redlock"
    program = f"import sys\nsys.modules['lupa'] = None\n{redis}\n{use}"

    ended = subprocess.run(  # noqa: S603  (our own program)
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert "ConfigurationError" in ended.stderr
    assert f"pip install 'celery-redlock[{extra}]'" in ended.stderr
