"""Compares the output that a page shows with the output that a program prints.

Only what differs from run to run may differ: ids, times, durations, addresses, versions
and long numbers. A page shortens with ``…``: inside a line, it matches any text; alone
in a line, it matches any number of lines.
"""

from __future__ import annotations

import re
import shlex
import socket
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_VARYING = (
    (r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID"),
    (r"\b[0-9a-f]{4,}…", "ID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b\d+\.\d+\.\d+\b", "VERSION"),
    (r"\b(\d+ [dhm] )?\d+(\.\d+)? (ms|d|h|m|s)\b", "DURATION"),
    (rf"your-machine|{re.escape(socket.gethostname())}", "HOST"),
    (r"on \S+ \(pid \d+\)", "on HOST (pid N)"),
    (r"@@\d+ \(start \d+", "@@N (start N"),  # chosen at random
    (r"\b\d{3,}\b", "N"),
    (r"\s+", " "),
)


class Shown(NamedTuple):
    """A block of a page that begins with a command, and goes on with its output."""

    page: str
    command: tuple[str, ...]
    output: str


def commands_shown() -> list[Shown]:
    """Return all blocks of the pages that show a command with its output."""
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text("utf-8")
        for block in re.findall(
            r"^```(?:text)?\n\$ (.*?)^```", text, re.MULTILINE | re.DOTALL
        ):
            typed, _, output = block.partition("\n")
            words = shlex.split(typed)
            name = str(page.relative_to(ROOT / "docs"))
            found.append(
                Shown(name, tuple(words[words.index("redlock") + 1 :]), output)
            )
    return found


def assert_shown(shown: str, printed: str) -> None:
    """Assert that a program has printed what a page shows, and nothing else."""
    lines = [_plain(line) for line in shown.strip().splitlines()]
    parts = [r"(?:.*\n)*?" if line == "…" else _pattern(line) for line in lines]
    said = "".join(f"{_plain(line)}\n" for line in printed.strip().splitlines())

    assert re.fullmatch("".join(parts), said), f"{shown}\n-- and now:\n{printed}"


def _plain(line: str) -> str:
    for pattern, word in _VARYING:
        line = re.sub(pattern, word, line)
    return line.strip()


def _pattern(line: str) -> str:
    return re.escape(line).replace("…", ".*") + r"\n"
