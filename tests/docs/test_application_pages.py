"""The programs of the pages about FastAPI, Flask and scripts, as they are written."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from celery_redlock.devnodes import DevNode, DevNodes
from celery_redlock.devnodes.processes import Process, free_port
from tests.docs.reader import blocks_of
from tests.harness.programs import Ended, end_of
from tests.harness.waiting import until
from tests.nodes.support import client, until_nothing_is_left

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
NODE, BROKER = "redis://localhost:6379/0", "redis://localhost:6379/1"
UVICORN = [sys.executable, "-m", "uvicorn", "shop:app", "--port", "PORT"]
PATIENCE = "4"  # seconds for an answer of a node, which may be late on a busy machine


@pytest.fixture
def nodes(start_nodes: Callable[..., DevNodes]) -> DevNodes:
    """Give the one Redis that the pages name."""
    return start_nodes(1)


@pytest.fixture
def broker(node_of_broker: DevNode) -> str:
    """Give the URL of a broker."""
    return node_of_broker.url


@pytest.fixture
def node_of_broker(start_nodes: Callable[..., DevNodes]) -> DevNode:
    """Give a Redis for messages."""
    return start_nodes(1, initialize=False).nodes[0]


def files_of(page: str, folder: Path, nodes: DevNodes, broker: str = BROKER) -> str:
    """Write the programs of a page to a folder; return its text with real addresses.

    Nodes have more time to answer there.
    """
    text = (PAGES / page).read_text("utf-8")
    text = text.replace(NODE, nodes.urls[0]).replace(BROKER, broker)
    text = text.replace("Redlock(NODES", f"Redlock(NODES, node_timeout={PATIENCE}")
    setting = r"^(\w+\.conf\.redlock_)nodes = .*$"
    more = rf"\g<0>; \g<1>node_timeout = {PATIENCE}"
    text = re.sub(setting, more, text, flags=re.MULTILINE)
    for language, code in blocks_of(text):
        if language == "python" and (title := re.match(r"# (\S+\.py)\n", code)):
            (folder / title[1]).write_text(code)
    return text


class Server(NamedTuple):
    """A server that runs."""

    url: str
    process: Process


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[list[str], str], Server]]:
    """Give a function that starts a server in the folder, and returns it."""
    started: list[Process] = []

    def start(command: list[str], ready: str) -> Server:
        port = free_port()
        words = [word.replace("PORT", str(port)) for word in command]
        log = tmp_path / f"{port}.log"
        process = Process("server", words, log=log, ready=ready, cwd=tmp_path)
        process.start()
        started.append(process)
        process.wait_until_ready()
        return Server(f"http://127.0.0.1:{port}", process)

    yield start
    for process in started:
        process.kill()


def post(url: str, method: str = "POST") -> tuple[int, str, str]:
    """Ask, and return the status, the body and the header `Retry-After`."""
    request = urllib.request.Request(url, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            return response.status, response.read().decode(), ""
    except urllib.error.HTTPError as error:
        after = str(error.headers.get("Retry-After", ""))
        return error.code, error.read().decode(), after


def pays_once_at_a_time(url: str, nodes: DevNodes) -> None:
    """Pay, be refused while another client has the lock, and pay again."""
    assert post(f"{url}/orders/7/pay")[0] == 200
    with client(nodes) as rival:
        lease = rival.acquire("order:7", wait=20)
        status, body, after = post(f"{url}/orders/7/pay")
        assert (status, "busy" in body) == (409, True)
        assert int(after) > 0
        rival.release(lease)
    until(lambda: post(f"{url}/orders/7/pay")[0] == 200)


def streams_under_the_lock(url: str, nodes: DevNodes) -> None:
    """Be refused before a response begins; hold the lock until its client has gone."""
    lines = f"{url}/orders/8/lines"
    with client(nodes) as rival:
        lease = rival.acquire("order:8", wait=20)
        assert post(lines, "GET")[0] == 409
        rival.release(lease)
    with urllib.request.urlopen(lines, timeout=60) as response:  # noqa: S310
        assert response.readline() == b"0\n"
        assert post(f"{url}/orders/8/pay")[0] == 409
        assert response.readline() == b"1\n"
    until(lambda: post(f"{url}/orders/8/pay")[0] == 200)


def says_that_nodes_are_away(url: str, nodes: DevNodes) -> None:
    """Be told of an outage, and not of another client."""
    nodes.nodes[0].kill()
    status, body, _ = post(f"{url}/orders/9/pay")
    assert (status, "false" in body) == (503, True)


def test_page_about_fastapi(
    nodes: DevNodes,
    broker: str,
    tmp_path: Path,
    serve: Callable[[list[str], str], Server],
) -> None:
    """The endpoints lock, answer 409 with a time, stream, and publish once."""
    pytest.importorskip("fastapi")
    files_of("fastapi.md", tmp_path, nodes, broker)

    url = serve(UVICORN, "Uvicorn running on").url

    pays_once_at_a_time(url, nodes)
    streams_under_the_lock(url, nodes)
    counts = [post(f"{url}/shelves/a/count")[1] for _ in range(2)]
    assert [('"new":true' in count) for count in counts] == [True, False]
    assert post(f"{url}/shelves/a/close")[0] == 200
    says_that_nodes_are_away(url, nodes)


def test_requests_of_fastapi_that_are_cancelled_at_the_end_release(
    nodes: DevNodes,
    broker: str,
    tmp_path: Path,
    serve: Callable[[list[str], str], Server],
) -> None:
    """A server that cancels a stream, and ends at once, leaves nothing locked."""
    pytest.importorskip("fastapi")
    files_of("fastapi.md", tmp_path, nodes, broker)
    grace = ["--timeout-graceful-shutdown", "1"]
    url, process = serve([*UVICORN, *grace], "Uvicorn running on")
    lines = f"{url}/orders/8/lines"

    with urllib.request.urlopen(lines, timeout=60) as response:  # noqa: S310
        assert response.readline() == b"0\n"
        process.signal(signal.SIGTERM)
        process.wait()

    until_nothing_is_left(nodes)


def test_worker_of_the_page_about_fastapi(
    nodes: DevNodes,
    broker: str,
    tmp_path: Path,
    serve: Callable[[list[str], str], Server],
) -> None:
    """The command of the page finds Celery's application, and not that of FastAPI."""
    pytest.importorskip("fastapi")
    text = files_of("fastapi.md", tmp_path, nodes, broker)
    [commands] = [code for language, code in blocks_of(text) if language == "sh"]
    [command] = [line for line in commands.splitlines() if "worker" in line]

    solo = ["--pool", "solo", "--loglevel", "INFO"]
    serve([sys.executable, "-m", *command.split(), *solo], " ready.")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(0, id="sync preload", marks=pytest.mark.long),
        pytest.param(1, id="gthread", marks=pytest.mark.long),
        pytest.param(2, id="gevent"),
    ],
)
def test_page_about_flask(
    nodes: DevNodes,
    broker: str,
    tmp_path: Path,
    serve: Callable[[list[str], str], Server],
    line: int,
) -> None:
    """Each command line of the page serves the application."""
    pytest.importorskip("flask")
    pytest.importorskip("gunicorn")
    text = files_of("flask.md", tmp_path, nodes, broker)
    [commands] = [code for language, code in blocks_of(text) if language == "sh"]
    words = commands.splitlines()[line].replace('"', "").split()
    assert words[0] == "gunicorn"
    command = [sys.executable, "-m", *words, "--bind", "127.0.0.1:PORT"]

    url = serve(command, "Booting worker").url

    pays_once_at_a_time(url, nodes)
    streams_under_the_lock(url, nodes)
    counts = [post(f"{url}/shelves/a/count")[1] for _ in range(2)]
    assert [('"new":true' in count) for count in counts] == [True, False]
    says_that_nodes_are_away(url, nodes)


def test_page_about_scripts(nodes: DevNodes, tmp_path: Path) -> None:
    """The command line runs; a refused script says one line; SIGTERM releases."""
    text = files_of("scripts.md", tmp_path, nodes)
    script = tmp_path / "nightly.sh"
    script.write_text("#!/bin/sh\necho nightly\n")
    script.chmod(0o755)
    [line] = [code for language, code in blocks_of(text) if language == "sh"]
    celery = shutil.which("celery", path=str(Path(sys.executable).parent))
    assert celery

    def run(*words: str) -> Ended:
        return end_of(*words, code=None, cwd=tmp_path)

    assert run("sh", "-c", line.replace("celery", celery, 1)).stdout == "nightly\n"

    first = Process(
        "script",
        [sys.executable, "nightly.py", "60"],
        log=tmp_path / "log",
        ready="working",
        cwd=tmp_path,
    )
    first.start()
    first.wait_until_ready()
    second = run(sys.executable, "nightly.py", "0")
    assert (second.returncode, second.stdout) == (75, "")
    assert re.fullmatch(r"The lock 'nightly' is held by .*\n", second.stderr)
    first.signal(signal.SIGTERM)
    first.wait()
    assert first.returncode == 143
    until_nothing_is_left(nodes)
    assert run(sys.executable, "nightly.py", "0").stdout == "working\n"


def test_page_about_a_pool(nodes: DevNodes, tmp_path: Path) -> None:
    """A process of a pool that is terminated releases its lock."""
    files_of("scripts.md", tmp_path, nodes)
    with subprocess.Popen(
        [sys.executable, "pool.py"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as pool:
        assert pool.stdout is not None
        assert pool.stdout.readline() == "working\n"
        pool.communicate("x", timeout=60)

    assert pool.returncode == 0
    until_nothing_is_left(nodes)


def test_page_about_asyncio(nodes: DevNodes, tmp_path: Path) -> None:
    """Each block runs; `close_account` waits for who has the lock of the task."""
    text = (PAGES / "asyncio.md").read_text("utf-8")
    blocks = [code for language, code in blocks_of(text) if language == "python"]
    program = f"""
import asyncio
import redis
from celery import Celery

app = Celery(set_as_current=True)
app.conf.redlock_nodes, app.conf.redlock_node_timeout = {nodes.urls!r}, {PATIENCE}
{"".join(blocks)}

async def waiter():
    node = redis.from_url({nodes.urls[0]!r})
    while not node.exists("redlock:line:account:1"):
        await asyncio.sleep(0.01)

async def main():
    redlock = Redlock({nodes.urls!r}, node_timeout={PATIENCE})
    await nightly(redlock)
    await by_hand(redlock)
    async with import_account.alock(1):
        closing = asyncio.create_task(close_account(1))
        await asyncio.wait_for(waiter(), 60)
        print(closing.done())
    print(await closing)

asyncio.run(main())
"""

    printed = end_of(sys.executable, "-c", program, cwd=tmp_path).stdout

    assert re.fullmatch(r"\d+ \d\d\.\d+\nFalse\nNone\n", printed), printed
    until_nothing_is_left(nodes)
