"""The SHAs by which a server finds the scripts."""

from __future__ import annotations

import pytest

from celery_redlock.scripts import ALL_SCRIPTS, FREE, INSPECT, Script
from tests.contract.subjects import ServerSubject


@pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda script: script.name)
def test_sha_is_that_of_the_server(server: ServerSubject, script: Script) -> None:
    """A server finds a script by its SHA after SCRIPT LOAD, and not before."""
    server.command("SCRIPT", "FLUSH")
    assert str(server.command("EVALSHA", script.sha, 0)).startswith("NOSCRIPT")

    assert server.command("SCRIPT", "LOAD", script.source) == script.sha.encode()
    assert server.command("SCRIPT", "EXISTS", script.sha) == [1]


def test_script_is_found_after_eval(server: ServerSubject) -> None:
    """EVAL loads a script, too."""
    server.command("SCRIPT", "FLUSH")
    server.inspect()

    assert server.command("EVALSHA", INSPECT.sha, 1, server.lock) == [FREE]
