"""A page of locks on nodes of its own, without a server and with one."""

from __future__ import annotations

import io
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from celery import Celery

from celery_redlock import web
from celery_redlock.app.runtime import runtime_of
from celery_redlock.locks.lease import Holder
from celery_redlock.web.server import LockServer
from tests.harness.waiting import until
from tests.nodes.support import PATIENT, client, locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery_redlock.devnodes import DevNodes
    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.limits import Limits
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.web import LockPage

__all__ = ["TOKEN", "Answer", "Office"]

TOKEN = "a token of these tests"
HOST = "locks.example"
BUSY = 10.0  # seconds for a node to answer, on a very busy machine


@dataclass(frozen=True)
class Answer:
    """The response of a page."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def text(self) -> str:
        """The text of the page, without its tags."""
        return " ".join(re.sub(r"<[^>]*>", " ", self.body).split())

    def values(self, name: str) -> list[str]:
        """Return the values of the fields of this name."""
        return re.findall(rf'name="{name}" value="([^"]*)"', self.body)


class Office:
    """A page of locks, and the lock service of a worker elsewhere.

    Attributes:
        nodes: The nodes of both.
        service: The lock service of the worker.
        app: The app of the page.
        page: The page, on which the token allows releases.
    """

    def __init__(self, nodes: DevNodes, service: Redlock) -> None:
        self.nodes = nodes
        self.service = service
        self.app = Celery("shop", set_as_current=False)
        self.app.conf.redlock_nodes = nodes.urls
        self.app.conf.redlock_node_timeout = PATIENT
        self.app.conf.redlock_connect_timeout = BUSY
        self.page = web.page(self.app, TOKEN)

    def hold(
        self, key: str | list[str] = "k", limits: Limits = (), **fields: Any
    ) -> Lease:
        """Take a lock as a task does, and return when all nodes have it."""
        facts: dict[str, Any] = {"task": "proj.send_invoice", "task_id": "id-of-it"}
        facts |= {"host": "worker-1", "pid": 4711, "started": 1_790_000_000.0}
        holder = Holder("", **facts | fields)
        lease = self.service.acquire(key, ttl=60.0, holder=holder, limits=limits)
        got, all_of_them = lease.key, len(self.nodes.nodes)
        until(
            lambda: self.service.inspect(got).votes == all_of_them, what=f"all: {got}"
        )
        return lease

    def is_held(self, key: str = "k") -> bool:
        """Tell whether all nodes have the lock; it is an error if only some have it."""
        found = len(locks(self.nodes, key))
        assert found in (0, len(self.nodes.nodes))
        return found > 0

    def get(
        self, path: str = "/", *, page: LockPage | None = None, **environ: Any
    ) -> Answer:
        """Return the answer to a GET, or to another method."""
        path, _, query = path.partition("?")
        given = {"PATH_INFO": path, "QUERY_STRING": query, "HTTP_HOST": HOST, **environ}
        return call(page or self.page, given)

    def post(
        self, fields: Any, *, page: LockPage | None = None, **environ: Any
    ) -> Answer:
        """Return the answer to a form, which a browser sends from the page itself."""
        data = urlencode(fields, doseq=True).encode()
        given = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/release",
            "CONTENT_TYPE": "application/x-www-form-urlencoded",
            "CONTENT_LENGTH": str(len(data)),
            "wsgi.input": io.BytesIO(data),
            "HTTP_HOST": HOST,
            "HTTP_ORIGIN": f"https://{HOST}",
            "REMOTE_ADDR": "10.0.0.3",
        }
        kept = {k: v for k, v in {**given, **environ}.items() if v is not None}
        return call(page or self.page, kept)

    def form(self, key: str = "k", **fields: Any) -> dict[str, Any]:
        """Return the fields of the form for this lock, as an operator fills them in."""
        asked = self.get(f"/release?{urlencode({'key': key})}")
        assert asked.status == 200, asked.text
        hidden = {"key": key, "shown": asked.values("shown")}
        typed = {"who": "alice", "reason": "stuck", "token": TOKEN}
        return {**hidden, **typed, **fields}


def call(page: LockPage, given: dict[str, Any]) -> Answer:
    """Call an application as a strict WSGI server does."""
    environ: dict[str, Any] = {"SCRIPT_NAME": "", "QUERY_STRING": "", **given}
    setup_testing_defaults(environ)
    started: list[Any] = []

    def start(status: str, headers: Any, _error: Any = None) -> Any:
        started.append((int(status.split(maxsplit=1)[0]), dict(headers)))
        return lambda _: None

    body = validator(page)(environ, start)
    try:
        content = b"".join(body)
    finally:
        body.close()  # type: ignore[attr-defined]
    status, headers = started[-1]
    return Answer(status, headers, content.decode())


@pytest.fixture
def open_office(
    lend_nodes: Callable[..., DevNodes],
) -> Iterator[Callable[..., Office]]:
    """Give a function that takes nodes, and a page of their locks."""
    opened = []

    def start(count: int = 3, **options: Any) -> Office:
        nodes = lend_nodes(count, **options)
        service = client(nodes, connect_timeout=BUSY)
        office = Office(nodes, service.__enter__())
        opened.append((office, service))
        office.service.check()  # connects to all nodes
        return office

    yield start
    for office, service in opened:
        service.__exit__(None, None, None)
        office.page.close()
        runtime_of(office.app).redlock.close()
        office.app.close()


@pytest.fixture
def office(open_office: Callable[..., Office]) -> Office:
    """Give a page of the locks on three nodes."""
    return open_office()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Give a function that serves a page, and returns the address of the page."""
    servers: list[tuple[LockServer, threading.Thread]] = []

    def start(page: Any) -> str:
        server = LockServer(page, "127.0.0.1", 0)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        servers.append((server, thread))
        return server.url

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()
