"""The server of the page of locks: connections, and the environment of a request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest

from celery_redlock.web.server import is_loopback


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
    with urlopen(url, timeout=60) as answer:  # noqa: S310  (the server of this test)
        body: bytes = answer.read()
    return body


def address_of(url: str) -> tuple[str, int]:
    """Return the address of a server."""
    return "127.0.0.1", int(url.rsplit(":", 1)[1].strip("/"))


def answer_to(url: str, request: bytes) -> bytes:
    """Return all that the server sends after these bytes."""
    with socket.create_connection(address_of(url)) as sock:
        sock.settimeout(30)
        sock.sendall(request)
        return b"".join(iter(lambda: sock.recv(65536), b""))


def test_slow_connections_block_no_request(serve: Callable[..., str]) -> None:
    """More of them than may be open: the oldest ones give way."""
    url = serve(user)

    slow = [socket.create_connection(address_of(url)) for _ in range(300)]
    for connection in slow:
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")

    assert read(url).startswith(b"127.0.0.1")
    slow[0].settimeout(60)
    assert slow[0].recv(100).startswith(b"HTTP/1.0 408 ")
    for connection in slow:
        connection.close()


def test_health_check_is_answered_while_all_others_wait(
    serve: Callable[..., str],
) -> None:
    """It has threads of its own; a request too many is refused at once."""
    go_on, began = threading.Event(), threading.Semaphore(0)

    def waits(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthz":
            began.release()
            assert go_on.wait(30)
        return user(environ, start)

    url = serve(waits)
    with ThreadPoolExecutor(28) as pool:
        answers = [pool.submit(read, url) for _ in range(28)]
        for _ in answers:
            assert began.acquire(timeout=30)

        assert read(f"{url}healthz").startswith(b"127.0.0.1")
        assert answer_to(url, b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 503 ")
        go_on.set()
        assert all(answer.result().startswith(b"127") for answer in answers)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, 431),
        (b"POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_request_out_of_bounds_is_refused(
    serve: Callable[..., str], request_: bytes, status: int
) -> None:
    """The application is not called."""
    answer = answer_to(serve(fails), request_)

    assert answer.startswith(f"HTTP/1.0 {status} ".encode()) or (
        status == 400 and b"400" in answer
    )


def test_response_names_no_server(serve: Callable[..., str]) -> None:
    """Neither the program nor its version."""
    for request_ in (b"GET / HTTP/1.1\r\n\r\n", b"x\r\n\r\n"):
        answer = answer_to(serve(user), request_)
        assert b"server:" not in answer.lower()
        assert b"Python" not in answer


def test_each_request_leaves_a_line(
    serve: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its text cannot look like other lines, and a health check leaves none."""
    url = serve(user)

    with caplog.at_level("INFO", "celery_redlock.web"):
        read(f"{url}healthz")
        answer_to(url, b"GET /a\x1b[2Jb HTTP/1.1\r\n\r\n")

    (line,) = [one for one in caplog.messages if "GET" in one]
    assert line.startswith('127.0.0.1 "GET /a')
    assert "\x1b" not in line


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
