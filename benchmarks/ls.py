"""The duration of `redlock ls` with very many locks, and its effect on other clients.

::

    python benchmarks/ls.py [--locks 100000] [--nodes 5] [--json]

The command runs in a process of its own; its start and its output count. Meanwhile
another client of each node sends PING a thousand times a second. Its waiting times are
compared with those without the command. As root, the nodes and these clients have the
first right to a processor, as on machines of their own, and the command the second.

The exit code is 1 if the listing took more than 10 s, or a PING more than 20 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.devnodes import DevNodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

SLOWEST, LONGEST_PAUSE_MS = 10.0, 20.0  # s, ms: the promise
FIRST, SECOND = 2, 1  # ranks of processes
EVERY = 0.001  # seconds between two PINGs
QUIET = 5.0  # seconds without the command

APP = """
import json, os
from celery import Celery

app = Celery("proj", broker="memory://")
app.conf.redlock_nodes = json.loads(os.environ["NODES"])
"""

# KEYS none; ARGV[1] the number of locks. They look like locks of tasks, for an hour.
FILL = """
local facts = '\\nshop.tasks.send_invoice\\nid-%d\\nworker-1\\n4711\\n%d'
local value = '%032x.%016x\\n%d' .. facts
local now = redis.call('TIME')[1]
for i = 1, ARGV[1] do
  local text = string.format(value, i, i, i, i, now)
  redis.call('SET', 'redlock:lock:invoice:' .. i, text, 'PX', 3600000)
end
"""


def prefer(pid: int, rank: int) -> None:
    """Give a process a processor before those of lower rank, if this is allowed."""
    with contextlib.suppress(AttributeError, PermissionError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(rank))


def ping(port: int, ready: Any, stop: Any, waits: Any) -> None:
    """Send PING until ``stop``; then report the times of the answers."""
    prefer(0, FIRST)
    taken = []
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ready.release()
        while not stop.is_set():
            began = SYSTEM_CLOCK.monotonic()
            line.sendall(b"PING\r\n")
            line.recv(64)
            taken.append(SYSTEM_CLOCK.monotonic() - began)
            time.sleep(EVERY)
    waits.put(taken)


class Pingers:
    """A client of each node, while the block runs.

    Attributes:
        waits: The sorted times of all answers in seconds; after the block.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self.waits: list[float] = []
        self._queue: Any = context.Queue()
        self._ready, self._stop = context.Semaphore(0), context.Event()
        self._processes = [
            context.Process(
                target=ping, args=(port, self._ready, self._stop, self._queue)
            )
            for port in ports
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        for _ in self._processes:
            self._ready.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for waits in [self._queue.get() for _ in self._processes]:
            self.waits += waits
        for process in self._processes:
            process.join()
        self.waits.sort()


def list_all(urls: Sequence[str]) -> tuple[float, float, int]:
    """Run the command.

    Returns:
        The seconds, the seconds of processor time, and the number of found locks.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "proj.py").write_text(APP)
        root = str(Path(__file__).parents[1])
        before, began = _used(), SYSTEM_CLOCK.monotonic()
        command = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "proj", "redlock", "ls"],
            cwd=folder,
            env={
                **os.environ,
                "NODES": json.dumps(list(urls)),
                "PYTHONPATH": os.pathsep.join((folder, root)),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        prefer(command.pid, SECOND)
        said, _ = command.communicate()
        took = SYSTEM_CLOCK.monotonic() - began
        used = _used() - before
    return took, used, said.count("invoice:")


def measure(locks: int, nodes: int) -> dict[str, Any]:
    """Return the figures."""
    with DevNodes(nodes) as servers:
        for node in servers.nodes:
            node.command("EVAL", FILL, 0, locks)
            prefer(int(node.command("INFO", "server")["process_id"]), FIRST)
        ports = [node.port for node in servers.nodes]
        with Pingers(ports) as alone:
            time.sleep(QUIET)
        with Pingers(ports) as beside:
            took, used, found = list_all(servers.urls)
    return {
        "nodes": nodes,
        "locks": locks,
        "locks_found": found,
        "listed_in_s": round(took, 2),
        "of_processor_time_s": round(used, 2),
        "pings": len(beside.waits),
        **_figures("", beside.waits),
        **_figures("without_ls_", alone.waits),
    }


def _used() -> float:
    """Return the seconds of processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _figures(when: str, waits: Sequence[float]) -> dict[str, float]:
    most = waits[int(len(waits) * 0.999)]
    return {
        f"{when}ping_p999_ms": round(1000 * most, 2),
        f"{when}ping_longest_ms": round(1000 * waits[-1], 2),
    }


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locks", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = measure(args.locks, args.nodes)
    lines = [f"{name.replace('_', ' '):36} {it}" for name, it in figures.items()]
    sys.stdout.write(json.dumps(figures) if args.json else "\n".join(lines))
    sys.stdout.write("\n")
    kept = (
        figures["locks_found"] == args.locks
        and figures["listed_in_s"] < SLOWEST
        and figures["ping_longest_ms"] < LONGEST_PAUSE_MS
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
