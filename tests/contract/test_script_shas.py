"""The names by which a server knows the scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.scripts import ALL_SCRIPTS, FREE, Script

if TYPE_CHECKING:
    from tests.contract.server_subject import ServerSubject


@pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda script: script.name)
def test_sha_is_what_a_server_calls_the_script(
    server: ServerSubject, script: Script
) -> None:
    """A server that has seen the source knows it by this name, and not before."""
    server.command("SCRIPT", "FLUSH")
    assert str(server.command("EVALSHA", script.sha, 0)).startswith("NOSCRIPT")

    assert server.command("SCRIPT", "LOAD", script.source) == script.sha.encode()
    assert server.command("SCRIPT", "EXISTS", script.sha) == [1]


def test_script_is_known_once_its_source_was_run(server: ServerSubject) -> None:
    """EVAL is enough: whoever comes after may say the SHA."""
    server.command("SCRIPT", "FLUSH")
    server.inspect()

    (inspect,) = (script for script in ALL_SCRIPTS if script.name == "inspect")
    assert server.command("EVALSHA", inspect.sha, 1, server.lock) == [FREE]
