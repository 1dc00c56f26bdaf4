"""The command that errors and log lines name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import celery_redlock
from celery_redlock.basics.command import command_of

OURS = "celery -A shop.tasks redlock"
SAMPLE = "celery -A proj redlock"


@pytest.mark.parametrize(
    ("argv", "environ", "command"),
    [
        (["/bin/celery", "-A", "shop.tasks", "worker"], {}, OURS),
        (["/lib/celery/__main__.py", "--app=shop.tasks", "worker"], {}, OURS),
        (["celery", "-Ashop.tasks", "beat"], {"APP": "other"}, OURS),
        (["celery", "worker"], {"APP": "shop.tasks"}, OURS),
        (["celery", "-A", "a b", "worker"], {}, "celery -A 'a b' redlock"),
        (["celery", "worker"], {}, SAMPLE),
        (["celery", "-A"], {}, SAMPLE),
        (["/bin/gunicorn", "-A", "other"], {"APP": "other"}, SAMPLE),
        ([], {}, SAMPLE),
    ],
)
def test_command_names_the_app_of_the_process(
    argv: list[str], environ: dict[str, str], command: str
) -> None:
    """Another program may have an option, or a variable, of the same name."""
    assert command_of(argv, environ) == command


def test_no_text_names_a_command_that_no_shell_finds() -> None:
    """`redlock` is a command of Celery's, with an app."""
    package = Path(celery_redlock.__file__).parent

    found = [
        f"{file.relative_to(package)}: {line.strip()}"
        for file in package.rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"(?<!`)`redlock [a-z]", line)
    ]

    assert not found
