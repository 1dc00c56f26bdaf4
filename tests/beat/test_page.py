"""The programs of ``docs/how-to/schedules.md`` run as the page says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import celery_redlock
from celery_redlock.devnodes import DevNodes
from tests.beat.support import MakeBeats, until
from tests.harness.deployment import Site
from tests.harness.journal import whole_lines

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "schedules.md"
SETTINGS, PROGRAM = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
)


def here(code: str, nodes: DevNodes) -> str:
    """Return the code of the page with the URLs of these nodes."""
    for name, url in zip("abc", nodes.urls, strict=True):
        code = code.replace(f"redis://redlock-{name}:6379/0", url)
    return code


def test_settings_of_the_page_make_beat_elect_and_send(
    project: MakeBeats, site: Site, three_nodes: DevNodes
) -> None:
    """``beat_scheduler = "redlock"`` replaces the option on the command line."""
    beats = project({})
    settings = here(SETTINGS, three_nodes)
    settings = settings.replace("redis://localhost:6379/0", beats.broker_url)
    (site.folder / "page.py").write_text(settings, encoding="utf-8")

    beat = beats.start(app="page", options=())

    sent = beats.until_sent(2, by=beat)
    assert [message.task for message in sent] == ["import"] * 2
    assert all(message.slot.startswith("beat:proj/import@") for message in sent)
    beat.until_logged("Elected leader of 'beat:proj'")


def test_program_of_the_page_elects_one_and_another_one_when_it_is_killed(
    three_nodes: DevNodes, tmp_path: Path
) -> None:
    """Of two processes one works. When it is killed, the other one works."""
    named = 'name="the reindexer"'
    assert named in PROGRAM
    program = tmp_path / "program.py"
    # The ttl of the page would make the test 15 seconds longer.
    code = here(PROGRAM, three_nodes).replace(named, f"{named}, ttl=5.0")
    program.write_text(code, encoding="utf-8")
    running, said = [], []
    for name in ("a", "b"):
        output = tmp_path / name
        with output.open("w") as stdout:
            running.append(start(program, stdout))
        said.append(output)
    try:
        until(lambda: any(terms(output) for output in said), 60)
        leader = 0 if terms(said[0]) else 1
        standby = 1 - leader
        until(lambda: len(terms(said[leader])) >= 3, 60)
        assert terms(said[standby]) == []

        running[leader].kill()
        until(lambda: len(terms(said[standby])) >= 2, 60)

        (old,), (new,) = {*terms(said[leader])}, {*terms(said[standby])}
        assert new > old
        running[standby].send_signal(signal.SIGINT)
        running[standby].wait(20)
    finally:
        for process in running:
            process.kill()
            process.wait()


def start(program: Path, stdout: TextIO) -> subprocess.Popen[str]:
    """Start a program that imports the same package as this process."""
    path = str(Path(celery_redlock.__path__[0]).parent)
    return subprocess.Popen(  # noqa: S603  (our own)
        [sys.executable, "-u", str(program)],
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def terms(output: Path) -> list[int]:
    """Return the numbers of the terms in which a program has worked."""
    return [int(line) for line in whole_lines(output) if line.isdigit()]
