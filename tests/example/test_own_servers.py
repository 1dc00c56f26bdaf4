"""The example without ``run.py``, on servers of its user."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.devnodes.processes import Process, free_port
from tests.example.support import PATIENCE, ROOT, Visitor
from tests.harness.programs import end_of
from tests.harness.waiting import until

FOLDER = ROOT / "example_project"


def test_commands_of_the_readme_run_the_site(redis_server: str, tmp_path: Path) -> None:
    """They need no folder or table of an earlier run; no runs overlap."""
    for package in ("django_celery_beat", "django_celery_results"):
        pytest.importorskip(package)
    port = str(free_port())
    with ExitStack() as stack:
        nodes = stack.enter_context(DevNodes(3, initialize=False))
        broker = stack.enter_context(DevNodes(1, initialize=False))
        variables = {
            "REDLOCK_NODES": ",".join(nodes.urls),
            "CELERY_BROKER_URL": broker.urls[0],
            "REPORTS_VAR": str(tmp_path / "var"),
            "REPORT_SECONDS": "2",
        }
        manage = (sys.executable, "-u", "manage.py")
        celery = (sys.executable, "-u", "-m", "celery", "-A", "project")
        for command in (
            (*celery, "redlock", "init"),
            (*manage, "migrate"),
            (*manage, "seed"),
        ):
            end_of(*command, variables=variables, cwd=FOLDER, input="y\n")
        for name, ready, *words in (
            ("web", "Quit the server", *manage, "runserver", port, "--noreload"),
            ("worker", " ready.", *celery, "worker", "-l", "INFO"),
            ("beat", "", *celery, "beat", "-S", "redlock", "--pidfile="),
        ):
            process = Process(
                name,
                words,
                log=tmp_path / name,
                ready=ready,
                environment=variables,
                cwd=FOLDER,
            )
            process.start()
            stack.callback(process.kill)
            process.wait_until_ready(PATIENCE)
        visitor = Visitor(f"http://127.0.0.1:{port}")
        visitor.press("run/", customer=1, times=5)

        def is_done() -> bool:
            runs = visitor.state()["runs"]
            return "report:1" in {r["key"] for r in runs if r["state"] == "done"}

        until(is_done, PATIENCE, what="a report")
        assert visitor.state()["overlaps"] == 0
