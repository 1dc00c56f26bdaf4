"""A web application under uWSGI, which forks without Python's hooks."""

from __future__ import annotations

import json
import os
import shutil
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from celery_redlock.devnodes.processes import Process, free_port
from tests.harness.lock_nodes import LockNodes
from tests.projects.app import SERVERS, notes

ROUNDS, AT_ONCE = 30, 8


@pytest.mark.parametrize(
    "options", [[], ["--enable-threads"]], ids=["plain", "threads"]
)
def test_processes_that_uwsgi_forks_share_no_connection(
    nodes: LockNodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
) -> None:
    """They read each other's replies, and two held one lock at once."""
    places = (str(Path(sys.executable).parent), os.environ["PATH"])
    uwsgi = shutil.which("uwsgi", path=os.pathsep.join(places))
    if uwsgi is None:
        pytest.skip("uwsgi is not installed (pip install uwsgi)")
    conf = {"redlock_nodes": nodes.urls}
    servers = json.dumps({"conf": conf, "notes": str(tmp_path / "notes")})
    monkeypatch.setenv(SERVERS, servers)
    port = free_port()
    process = Process(
        "uwsgi",
        [
            *(uwsgi, "--http-socket", f"127.0.0.1:{port}", "--master", "-p", "4"),
            *("--module", "tests.projects.web_app", "--die-on-term", *options),
        ],
        log=tmp_path / "uwsgi.log",
        ready="spawned uWSGI worker 4",
        environment={SERVERS: servers, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    process.start()
    try:
        process.wait_until_ready()

        def get(path: str) -> str:
            url = f"http://127.0.0.1:{port}{path}"
            with urllib.request.urlopen(url, timeout=20) as reply:
                return str(reply.read().decode())

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for number in range(ROUNDS):
                answers = set(pool.map(get, [f"/{number}"] * AT_ONCE))
                assert "ran" in answers <= {"ran", "held"}
                order = [one["step"] for one in notes(f"/{number}")]
                assert order == ["began", "ended"] * (len(order) // 2)
    finally:
        process.kill()
