"""Web sites under test: started as programs, and asked by many clients at once."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from celery_redlock.devnodes.processes import Process, free_port

ROOT = Path(__file__).parents[2]
CLIENTS = 10  # at once

Answer = tuple[int, Any]  # the status and the body


def ask(url: str) -> Answer:
    """Ask for a page, and return its status and what its JSON says."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def answers(urls: Sequence[str], count: int) -> list[Answer]:
    """Ask for these pages in turn, many at once, so often in all."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        turns = (urls[number % len(urls)] for number in range(count))
        return list(clients.map(ask, turns))


def statuses(seen: Sequence[Answer]) -> Counter[int]:
    """Count the statuses."""
    return Counter(status for status, _ in seen)


@contextlib.contextmanager
def uvicorns(
    application: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[list[str]]:
    """Serve an application in two processes, and give their addresses."""
    with contextlib.ExitStack() as stack:
        urls = []
        for number in range(2):
            port = free_port()
            process = Process(
                f"uvicorn-{number}",
                [sys.executable, "-m", "uvicorn", application, "--port", str(port)],
                log=folder / f"uvicorn-{number}.log",
                ready="Uvicorn running on",
                environment={"PYTHONPATH": os.pathsep.join([str(ROOT)]), **environment},
            )
            process.start()
            stack.callback(process.kill)
            process.wait_until_ready()
            urls.append(f"http://127.0.0.1:{port}")
        yield urls
