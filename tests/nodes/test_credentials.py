"""Passwords and permissions: errors name the missing one and show no secret."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from celery_redlock.devnodes import DevNodes, ServerOptions
from celery_redlock.operations.acl import acl_rules
from tests.nodes.support import (
    client,
    refusal,
    until,
    until_all_vote,
    until_nothing_is_left,
    use,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "s3cr3t/@:%#&=?+ ü"


@pytest.mark.every_server
def test_nodes_are_reached_by_unix_socket(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """With unix:// nodes have no port; their labels are the paths."""
    nodes = start_nodes(3, options=ServerOptions(unix_socket=True, password=SECRET))
    with client(nodes) as redlock:
        assert all(label.endswith("/socket/0") for label in redlock.labels)
        assert not any("s3cr3t" in label for label in redlock.labels)
        use(redlock, key)
        nodes.nodes[0].kill()
        nodes.nodes[1].kill()
        error = refusal(redlock, key)
        until(lambda: "refused the connection" in str(refusal(redlock, key)))
        assert redlock.labels[0] in str(error)
        assert "s3cr3t" not in str(refusal(redlock, key))


@pytest.mark.every_server
def test_nodes_are_reached_as_a_limited_user(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A user with the rights that `redlock doctor --acl` prints needs no others."""
    acl = acl_rules("redlock")
    options = ServerOptions(username="locker", password=SECRET, acl=acl)
    nodes = start_nodes(3, options=options)
    with client(nodes) as redlock:
        until_all_vote(redlock)
        use(redlock, key)
        for node in nodes.nodes:
            node.command("SCRIPT", "FLUSH")
        use(redlock, key)
    until_nothing_is_left(nodes)


@pytest.mark.every_server
@pytest.mark.parametrize("missing_right", ["info", "evalsha", "hset", "set"])
def test_right_that_is_missing_is_named(
    start_nodes: Callable[..., DevNodes], key: str, missing_right: str
) -> None:
    """A user without a permission gets no vote; the error quotes the server."""
    options = ServerOptions(username="locker", password="secret")
    nodes = start_nodes(3, options=options)
    for node in nodes.nodes:
        node.command("ACL", "SETUSER", "locker", f"-{missing_right}")
    with client(nodes) as redlock:
        error = refusal(redlock, key)

    assert missing_right in str(error) or "permission" in str(error).lower()
    assert "secret" not in str(error)
    until_nothing_is_left(nodes)


def test_wrong_password_is_named_and_not_shown(
    start_nodes: Callable[..., DevNodes], caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials that are rejected appear in no error, label or log."""
    caplog.set_level(logging.DEBUG)
    nodes = start_nodes(3, options=ServerOptions(password="right"))
    wrong = quote(SECRET, safe="")
    urls = [f"redis://:{wrong}@127.0.0.1:{node.port}/0" for node in nodes.nodes]
    with client(urls) as redlock:
        error = refusal(redlock)
        said = [str(error), repr(error), repr(redlock), *redlock.labels, caplog.text]
        said += [repr(redlock.addresses), str(redlock.check().problems)]

    assert "rejected the credentials" in str(error)
    assert not any(part in text for text in said for part in ("s3cr3t", wrong))


def test_missing_password_is_named(start_nodes: Callable[..., DevNodes]) -> None:
    """The error says that a node rejected a client without a password."""
    nodes = start_nodes(3, options=ServerOptions(password="right"))
    urls = [f"redis://127.0.0.1:{node.port}/0" for node in nodes.nodes]
    with client(urls) as redlock:
        assert "rejected the credentials" in str(refusal(redlock))


def test_password_that_changes_is_noticed_and_repaired(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A client that lost its connections by a change connects again by itself."""
    options = ServerOptions(username="locker", password="one")
    nodes = start_nodes(3, options=options)
    with client(nodes) as redlock:
        use(redlock, key)
        for node in nodes.nodes:
            node.command("ACL", "SETUSER", "locker", "resetpass", ">two")
            node.command("CLIENT", "KILL", "USER", "locker")
        until(lambda: "rejected the credentials" in str(refusal(redlock, key)))
        for node in nodes.nodes:
            node.command("ACL", "SETUSER", "locker", ">one")

        until_all_vote(redlock)
        use(redlock, key)
