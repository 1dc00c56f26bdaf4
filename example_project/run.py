"""Set the site up and run all of it until Ctrl-C: ``make example``.

::

    this process ──┬── five lock nodes, the broker      real redis-servers
                   │   (or a store: --store etcd)
                   ├── two workers, two beats           ``celery -A project ...``
                   └── a thread with the web server

All ports are free ones, and all processes end with this one. The live page may stop
and kill some of them. It asks the main thread to do so, because the kernel ends a child
process with the *thread* that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from celery_redlock import RedlockError
from celery_redlock.devnodes import STORES, DevNodes, DevStore
from celery_redlock.devnodes.processes import Process, stop

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
NODES, CONCURRENCY = 5, 6
WORKERS, BEATS = ("worker-1", "worker-2"), ("beat-1", "beat-2")
_ORDER_WITHIN = 70.0  # seconds, in which a server of a store has started or failed
MAX_TTL = 12.0  # CELERY_REDLOCK_MAX_TTL


class Site:
    """All processes of the site. The live page calls it from other threads.

    Args:
        var: The folder for its files.
        store: The kind of store to use in place of the nodes.
    """

    def __init__(self, var: Path, store: str | None = None) -> None:
        self.log = var / "log"
        self.log.mkdir(parents=True, exist_ok=True)
        self.env = var / "env"
        self.nodes: DevNodes | DevStore = (
            DevStore(store, max_ttl=MAX_TTL)
            if store
            else DevNodes(NODES, max_ttl=MAX_TTL)
        )
        self.broker = DevNodes(1, initialize=False)
        alone = ("--without-gossip", "--without-mingle")
        self.workers = [
            self._celery(
                name, "worker", "-n", f"{name}@%h", "-c", str(CONCURRENCY), *alone
            )
            for name in WORKERS
        ]
        self.beats = [
            self._celery(
                name, "beat", "-S", "redlock", "--pidfile=", "-s", str(self.log / name)
            )
            for name in BEATS
        ]
        self._orders: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()

    def _celery(self, name: str, *words: str) -> Process:
        path = [str(HERE), os.environ.get("PYTHONPATH", "")]
        python = (sys.executable, "-u", "-m")
        return Process(
            name,
            [*python, "celery", "-A", "project", *words, "-l", "INFO"],
            log=self.log / f"{name}.log",
            ready=" ready.",  # what a worker says
            environment={"PYTHONPATH": os.pathsep.join(filter(None, path))},
        )

    # -- for the live page -----------------------------------------------------------

    @property
    def store_servers(self) -> list[str]:
        """The servers of the store; none if there are nodes."""
        if isinstance(self.nodes, DevNodes):
            return []
        return [f"127.0.0.1:{node.port}" for node in self.nodes.nodes]

    def node_runs(self, index: int) -> bool:
        """Tell whether the server of a node runs."""
        return self.nodes.nodes[index].is_running

    def stop_node(self, index: int) -> None:
        """Kill the server of a node; its memory is lost, unless it is a store's."""
        self._in_main_thread(self.nodes.nodes[index].kill)

    def start_node(self, index: int) -> None:
        """Start the server of a node again: empty, unless it is a store's."""
        self._in_main_thread(self.nodes.nodes[index].start)

    def kill_child(self, pid: int, parent: int) -> bool:
        """Kill a process of a worker. Return False if no worker has this process."""
        if parent not in [worker.pid for worker in self.workers]:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def _in_main_thread(self, order: Callable[[], Any]) -> None:
        done: Future[Any] = Future()
        self._orders.put((order, done))
        done.result(timeout=_ORDER_WITHIN)

    # -- running -----------------------------------------------------------------------

    def start_servers(self) -> None:
        """Start nodes and broker, and put their addresses into the environment."""
        self.nodes.start()
        self.broker.start()
        addresses = {
            "REDLOCK_NODES": ",".join(self.nodes.urls),
            "CELERY_BROKER_URL": self.broker.urls[0],
        }
        os.environ.update(addresses)
        lines = [f"export {name}='{value}'\n" for name, value in addresses.items()]
        self.env.write_text("".join(lines))

    def start_celery(self) -> None:
        """Start workers and beats, and return when the workers take tasks."""
        for process in (*self.workers, *self.beats):
            process.start()
        for worker in self.workers:
            worker.wait_until_ready()

    def serve(self) -> NoReturn:
        """Carry out the orders of the page until Ctrl-C; report processes that end."""
        watched = [*self.workers, *self.beats]
        while True:
            with contextlib.suppress(queue.Empty):
                order, done = self._orders.get(timeout=1.0)
                try:
                    done.set_result(order())
                except RedlockError as error:
                    done.set_exception(error)
            for process in [one for one in watched if not one.is_running]:
                watched.remove(process)
                fact = f"{process.name} has ended: see {process.log_file}"
                print(fact, file=sys.stderr)

    def stop(self) -> None:
        """End all processes and wait until they have ended."""
        stop(*self.workers, *self.beats)
        self.broker.stop()
        self.nodes.stop()
        self.env.unlink(missing_ok=True)


def prepare_database() -> None:
    """Create the tables and the first rows."""
    import django  # noqa: PLC0415  (its settings need the addresses)
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    call_command("migrate", verbosity=0)
    call_command("seed")
    from live.models import Run  # noqa: PLC0415  (after django.setup)

    Run.objects.all().delete()  # their processes have ended


def start_web_server(site: Site, port: int) -> Any:
    """Serve the site in a thread; its live page may break the site."""
    from django.contrib.staticfiles.handlers import StaticFilesHandler  # noqa: PLC0415
    from django.core.servers import basehttp  # noqa: PLC0415

    from live import processes  # noqa: PLC0415  (after django.setup)
    from project.wsgi import application  # noqa: PLC0415

    processes.register(site)
    server = basehttp.ThreadedWSGIServer(
        ("127.0.0.1", port), _quiet(basehttp.WSGIRequestHandler)
    )
    server.set_app(StaticFilesHandler(application))
    threading.Thread(target=server.serve_forever, name="web", daemon=True).start()
    return server


def _quiet(handler: type) -> type:
    """Return a handler that does not log requests: the page sends one each second."""
    return type("Handler", (handler,), {"log_message": lambda *_: None})


def main() -> int:
    """Run the site until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Run the example with all it needs.")
    parser.add_argument("--port", type=int, help="of the web server; a free one")
    parser.add_argument("--store", choices=STORES, help="in place of the lock nodes")
    arguments = parser.parse_args()
    port = arguments.port or 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    sys.path.insert(0, str(HERE))
    var = Path(os.environ.get("REPORTS_VAR") or HERE / "var")
    try:
        site = Site(var, arguments.store)
    except RedlockError as error:
        print(error, file=sys.stderr)
        return 1
    what = f"the store {arguments.store}" if arguments.store else "five lock nodes"
    try:
        print(f"Starting {what}, a broker, two workers and two beats ...")
        site.start_servers()
        prepare_database()
        site.start_celery()
        server = start_web_server(site, port)
        port = server.server_port
        print(
            f"\n  the live page  http://127.0.0.1:{port}/live/\n"
            f"  the admin      http://127.0.0.1:{port}/admin/   log in as admin "
            "(password admin),\n"
            "                 or as support (password support), who may not release "
            "locks\n"
            f"  the logs       {site.log}\n"
            f"  a shell        . {site.env}   then manage.py or celery -A project\n"
            "\nCtrl-C stops everything.",
            flush=True,
        )
        try:
            site.serve()
        finally:
            server.server_close()
    except KeyboardInterrupt:
        print("\nStopping ...")
        return 0
    except RedlockError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        site.stop()


if __name__ == "__main__":
    sys.exit(main())
