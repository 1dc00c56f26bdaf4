"""Set the site up and run all of it, until Ctrl-C: ``make example``.

::

    this process ──┬── five lock nodes, the broker      real redis-servers
                   ├── two workers, two beats           ``celery -A project ...``
                   └── a thread with the web server

Ports are free ones. Whatever is started here ends with this process, however that
ends. What the live page may break it asks the main thread to break, since the kernel
ends a process with the *thread* that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from celery_redlock.devnodes import DevNodes
from celery_redlock.devnodes.server import spawn
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
NODES, WORKERS, SLOTS, BEATS = 5, 2, 6, 2
MAX_TTL = 12.0  # CELERY_REDLOCK_MAX_TTL
READY_WITHIN, ENDS_WITHIN = 60.0, 8.0  # seconds


class Site:
    """All processes of the site. The live page calls it from other threads."""

    def __init__(self, var: Path) -> None:
        self.log = var / "log"
        self.log.mkdir(parents=True, exist_ok=True)
        self.env = var / "env"
        self.nodes = DevNodes(NODES, max_ttl=MAX_TTL)
        self.broker = DevNodes(1, initialize=False)
        self.celeries: dict[str, subprocess.Popen[bytes]] = {}
        self._orders: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()

    # -- what the live page may do ---------------------------------------------------

    def node_runs(self, index: int) -> bool:
        """Tell whether a node's server is running."""
        return self.nodes.nodes[index].is_running

    def stop_node(self, index: int) -> None:
        """Kill a node's server, with all that it knows."""
        self._in_main_thread(self.nodes.nodes[index].kill)

    def start_node(self, index: int) -> None:
        """Start it again, empty."""
        self._in_main_thread(self.nodes.nodes[index].start)

    def kill_child(self, pid: int, parent: int) -> bool:
        """Kill a process of one of the workers. Tell whether it was one."""
        if parent not in [celery.pid for celery in self.celeries.values()]:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def _in_main_thread(self, order: Callable[[], Any]) -> None:
        done: Future[Any] = Future()
        self._orders.put((order, done))
        done.result(timeout=10.0)

    # -- running -----------------------------------------------------------------------

    def start_servers(self) -> None:
        """Start nodes and broker, and tell the settings where they are."""
        self.nodes.start()
        self.broker.start()
        where = {
            "REDLOCK_NODES": ",".join(self.nodes.urls),
            "CELERY_BROKER_URL": self.broker.urls[0],
        }
        os.environ.update(where)
        lines = [f"export {name}='{value}'\n" for name, value in where.items()]
        self.env.write_text("".join(lines))

    def start_celery(self) -> None:
        """Start workers and beats, and return when the workers take tasks."""
        for number in range(1, WORKERS + 1):
            self._start(
                f"worker-{number}",
                *("worker", "-n", f"worker-{number}@%h", "-c", str(SLOTS)),
                *("--without-gossip", "--without-mingle"),
            )
        for number in range(1, BEATS + 1):
            self._start(f"beat-{number}", "beat", "-S", "redlock", "--pidfile=")
        from project import celery_app  # noqa: PLC0415  (its settings are known now)

        deadline = time.monotonic() + READY_WITHIN
        while len(celery_app.control.ping(timeout=0.5) or []) < WORKERS:
            ended = [n for n, c in self.celeries.items() if c.poll() is not None]
            if ended or time.monotonic() > deadline:
                which = ", ".join(ended) or "The workers"
                raise RedlockError(f"{which} did not start: see {self.log}.")

    def _start(self, name: str, *words: str) -> None:
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "project",
            *words,
            "-l",
            "INFO",
        ]
        paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        environment = {"PYTHONPATH": paths.strip(os.pathsep)}
        self.celeries[name] = spawn(command, self.log / f"{name}.log", environment)

    def serve(self) -> NoReturn:
        """Carry out orders until Ctrl-C, and say so if something ends by itself."""
        while True:
            with contextlib.suppress(queue.Empty):
                order, done = self._orders.get(timeout=1.0)
                try:
                    done.set_result(order())
                except RedlockError as error:
                    done.set_exception(error)
            for name in [n for n, c in self.celeries.items() if c.poll() is not None]:
                del self.celeries[name]
                print(f"{name} has ended: see {self.log / name}.log", file=sys.stderr)

    def stop(self) -> None:
        """End everything, and wait until it has ended."""
        for celery in self.celeries.values():
            _signal_group(celery, signal.SIGTERM)
        deadline = time.monotonic() + ENDS_WITHIN
        for celery in self.celeries.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                celery.wait(max(0.0, deadline - time.monotonic()))
            _signal_group(celery, signal.SIGKILL)
            celery.wait()
        self.broker.stop()
        self.nodes.stop()
        self.env.unlink(missing_ok=True)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def prepare_database() -> None:
    """Make the tables, and what the site begins with."""
    import django  # noqa: PLC0415  (its settings are known now)
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    call_command("migrate", verbosity=0)
    call_command("seed")
    from live.models import Run  # noqa: PLC0415  (after django.setup)

    Run.objects.all().delete()  # of processes that are gone


def start_web_server(site: Site, port: int) -> Any:
    """Serve the site in a thread; this page may break the site."""
    from django.apps import apps  # noqa: PLC0415  (after django.setup)
    from django.contrib.staticfiles.handlers import StaticFilesHandler  # noqa: PLC0415
    from django.core.servers import basehttp  # noqa: PLC0415

    from project.wsgi import application  # noqa: PLC0415

    apps.get_app_config("live").stage = site
    server = basehttp.ThreadedWSGIServer(
        ("127.0.0.1", port), _quiet(basehttp.WSGIRequestHandler)
    )
    server.set_app(StaticFilesHandler(application))
    threading.Thread(target=server.serve_forever, name="web", daemon=True).start()
    return server


def _quiet(handler: type) -> type:
    """Return a handler that does not log each of the page's questions."""
    return type("Handler", (handler,), {"log_message": lambda *_: None})


def main() -> int:
    """Run the site until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Run the example with all it needs.")
    parser.add_argument("--port", type=int, help="Of the web server; else a free one.")
    port = parser.parse_args().port or 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    sys.path.insert(0, str(HERE))
    var = Path(os.environ.get("REPORTS_VAR") or HERE / "var")
    site = Site(var)
    try:
        print("Starting five lock nodes, a broker, two workers and two beats ...")
        site.start_servers()
        prepare_database()
        site.start_celery()
        server = start_web_server(site, port)
        port = server.server_port
        print(
            f"\n  Reports    http://127.0.0.1:{port}/live/\n"
            f"  the admin  http://127.0.0.1:{port}/admin/   admin/admin, "
            "or support/support, who may not release locks\n"
            f"  logs       {site.log}\n"
            f"  a shell    . {site.env}   and then manage.py, celery -A project ...\n"
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
