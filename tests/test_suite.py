"""A run of the tests: its children's signals, its proxies, and the report of CI."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from celery_redlock.devnodes import DevNode
from tests.conftest import (
    group_of,
    longest_first,
    pytest_ignore_collect,
    rotated,
)
from tests.harness.kept_nodes import KeptNodes
from tests.harness.programs import end_of
from tests.harness.tcp import proxies

PROGRAM = """
import signal, subprocess, sys
from tests.harness.signals import handle_ignored_signals
ignored = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM]
for number in ignored:
    signal.signal(number, signal.SIG_IGN)
child = "import signal\\nfor n in {}: print(signal.getsignal(n) is signal.SIG_IGN)"
command = [sys.executable, "-I", "-S", "-c", child.format([int(n) for n in ignored])]
handle_ignored_signals()
for number in (signal.SIGHUP, signal.SIGTERM):
    signal.raise_signal(number)
print(subprocess.check_output(command, text=True))
"""


def test_children_ignore_no_signal_that_pytest_ignores() -> None:
    """Pytest in the background, or under ``nohup``, goes on; its children end."""
    assert end_of(sys.executable, "-c", PROGRAM).stdout.split() == ["False"] * 4


def test_proxy_closes_what_it_has_just_accepted() -> None:
    """Also connections that come in the moment in which it ends: else Python warns."""
    with socket.create_server(("127.0.0.1", 0)) as target:
        node: Any = SimpleNamespace(port=target.getsockname()[1])
        for _ in range(20):
            with contextlib.ExitStack() as clients, proxies([node]) as (proxy,):
                port = urlsplit(proxy.url).port
                for _ in range(3):
                    client = clients.enter_context(socket.socket())
                    client.settimeout(0)
                    client.connect_ex(("127.0.0.1", port))
    gc.collect()


class Item:
    """A long test with this `timeout`; a short one without."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds

    def get_closest_marker(self, _name: str) -> Any:
        """Return the mark for both; None without one."""
        return self.seconds and SimpleNamespace(args=[self.seconds])


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_each_process_begins_with_its_longest_tests(workers: int) -> None:
    """All tests are dealt to the processes, and each has its share of the longest."""
    seconds = [None, 120, None, 900, 300, 2400, None, 600, None, 1200, 60, None, None]
    items: list[Any] = [Item(each) for each in seconds]

    dealt: list[Any] = longest_first(items, workers)

    size = len(items) // workers
    first = [dealt[size * worker].seconds for worker in range(workers)]
    assert first == [2400, 1200, 900, 600][:workers]
    assert sorted(map(id, dealt)) == sorted(map(id, items))


STEPS = Path(__file__).parents[1] / ".ci" / "steps.sh"
FAILING = """
print("Using --randomly-seed=42")
print("a traceback")
print("FAILED tests/test_a.py::test_one - AssertionError", flush=True)
raise SystemExit(1)
"""


@pytest.mark.skipif(not STEPS.exists(), reason="this copy of the project has no CI")
def test_report_of_ci_ends_with_the_tests_that_failed(tmp_path: Path) -> None:
    """Each step shows its output at once. The end names failures and their seeds."""
    (tmp_path / "failing.py").write_text(FAILING)
    script = f"""
        set -euo pipefail
        source {STEPS}
        step 1 true
        step 1 {sys.executable} {tmp_path}/failing.py
        step 1 sh -c 'echo not a test; exit 3'
        step 0.01 sh -c 'echo hangs; exec sleep 60'
        report || exit 7
    """
    done = end_of("bash", "-c", script, code=7)

    assert "a traceback" in done.stdout
    assert done.stderr.splitlines() == [
        f"Failed: {sys.executable} {tmp_path}/failing.py",
        "Using --randomly-seed=42",
        "FAILED tests/test_a.py::test_one - AssertionError",
        "Failed: sh -c echo not a test; exit 3",
        "not a test",
        "Failed: sh -c echo hangs; exec sleep 60",
        "hangs",
    ]


def test_tests_with_servers_of_their_own_share_few_processes() -> None:
    """A file of workers is in one of three groups; tests of nodes are each alone."""
    files = [f"tests/worker/test_{name}.py" for name in "abcdefghijkl"]
    groups = {group_of(f"{file}::test_it") for file in files}

    assert len(groups) == 3
    assert all(group_of(f"{f}::test_1") == group_of(f"{f}::test_2[x]") for f in files)
    assert group_of("tests/nodes/test_x.py::test_1") == "tests/nodes/test_x.py::test_1"
    assert group_of("tests/contract/test_x.py::test_1") == "tests/contract/test_x.py"


def test_processes_import_the_tests_from_different_ones_onwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of three begins with a third of its own, and imports all."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    orders = [rotated([*"abcdef"], worker) for worker in range(3)]

    assert ["".join(order) for order in orders] == ["abcdef", "cdefab", "efabcd"]


@pytest.mark.parametrize(
    ("marks", "text", "imported"),
    [
        ("not long", "pytestmark = pytest.mark.long", False),
        ("not long", "pytestmark = [pytest.mark.long, pytest.mark.timeout(9)]", False),
        ("not long", "@pytest.mark.long\ndef test_it(): ...", True),
        ("", "pytestmark = pytest.mark.long", True),
        ("long and not exhaustive", "pytestmark = pytest.mark.long", True),
    ],
)
def test_make_test_imports_no_file_whose_tests_are_all_long(
    marks: str, text: str, tmp_path: Path, *, imported: bool
) -> None:
    """Other choices of tests import each file, and so does a mark at one test."""
    file = tmp_path / "test_it.py"
    file.write_text(text)
    config: Any = SimpleNamespace(getoption=lambda _name: marks)

    assert bool(pytest_ignore_collect(file, config)) == (not imported)


def test_next_test_gets_the_servers_without_the_data(kept_nodes: KeptNodes) -> None:
    """They vote in a deployment of their own, and connections are closed."""
    nodes = kept_nodes.take(1)
    (node,) = nodes.nodes
    pid = node.pid
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as client:
        client.sendall(b"SET left behind\r\n")
        assert client.recv(5) == b"+OK\r\n"
        kept_nodes.give_back(nodes)

        assert kept_nodes.take(1) is nodes
        assert node.pid == pid
        assert node.command("EXISTS", "left", "redlock:meta") == 1
        assert client.recv(1) == b""
    kept_nodes.give_back(nodes)


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.command("CONFIG", "SET", "maxmemory", "9mb"),
        lambda node: node.command("ACL", "SETUSER", "other"),
        lambda node: node.restart(),
        lambda node: node.pause(),
        lambda node: node.kill(),
    ],
    ids=["configured", "user", "restarted", "paused", "killed"],
)
def test_server_that_was_changed_is_used_by_no_other_test(
    kept_nodes: KeptNodes, change: Callable[[DevNode], object]
) -> None:
    """It is stopped, and the next test gets a new one."""
    nodes = kept_nodes.take(1)
    change(nodes.nodes[0])
    kept_nodes.give_back(nodes)

    following = kept_nodes.take(1)

    assert following is not nodes
    assert not nodes.nodes[0].is_running
    kept_nodes.give_back(following)
