"""The server of the page of locks: connections, and the environment of a request."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from celery_redlock.web.server import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def user(
    environ: dict[str, Any], start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """Answer with the user of the request."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{environ.get('REMOTE_ADDR')} {environ.get('REMOTE_USER')!r}".encode()]


def fails(_environ: Any, _start: Any) -> Iterable[bytes]:
    """Fail, as an application does that has a bug."""
    raise ValueError("a bug")


def read(url: str) -> bytes:
    """Return the body of a page."""
    with urlopen(url) as answer:  # noqa: S310  (the server of this test)
        body: bytes = answer.read()
    return body


def test_silent_connections_block_no_request(serve: Callable[..., str]) -> None:
    """Each connection has a thread of its own."""
    url = serve(user)
    address = ("127.0.0.1", int(url.rsplit(":", 1)[1].strip("/")))

    silent = [socket.create_connection(address) for _ in range(10)]

    assert read(url).startswith(b"127.0.0.1")
    for connection in silent:
        connection.close()


def test_user_of_the_process_is_not_the_user_of_a_request(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard library adds the environment of the process to that of a request."""
    monkeypatch.setattr(
        "wsgiref.handlers.BaseHandler.os_environ", {"REMOTE_USER": "root"}
    )

    assert read(serve(user)) == b"127.0.0.1 ''"


def test_failing_application_is_logged_and_the_server_continues(
    serve: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets an error without a traceback."""
    url = serve(fails)

    for _ in range(2):
        with pytest.raises(OSError, match="500") as failed:
            read(url)
        assert b"a bug" not in failed.value.read()  # type: ignore[attr-defined]
        failed.value.close()  # type: ignore[attr-defined]

    assert "ValueError: a bug" in caplog.text


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False)],  # noqa: S104
)
def test_loopback_is_an_address_of_this_machine_only(
    host: str, *, expected: bool
) -> None:
    """All other addresses can be reached from elsewhere."""
    assert is_loopback(host) is expected
