"""A project whose keys come from wrappers, headers and a serializer of its own."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from kombu.serialization import register

from celery_redlock import singleton_task
from tests.harness.waiting import until
from tests.projects.app import new_app, note, notes


def _as_text(value: object) -> str:
    if isinstance(value, (uuid.UUID, Decimal)):
        return str(value)
    raise TypeError(value)


_register: Any = register  # has no types
_register(
    "project-json",
    functools.partial(json.dumps, default=_as_text),
    json.loads,
    content_type="application/x-project-json",
    content_encoding="utf-8",
)
app = new_app("keys", accept_content=["json", "application/x-project-json", "msgpack"])


class Session:
    """A connection to the database of the project."""

    def name_of(self, account: int) -> str:
        """Return the name of an account."""
        return f"account {account}"


def with_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a body a session as its first argument."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(Session(), *args, **kwargs)

    return inner


@singleton_task(app=app, name="report", unique_while="queued_or_running")
@with_session
def report(session: Session, account: int, days: int = 7) -> str:
    """Report about an account."""
    note("report", account=account, days=days)
    return session.name_of(account)


@singleton_task(
    app=app,
    name="save",
    serializer="msgpack",
    key="blob:{data}",
    unique_while="queued_or_running",
)
def save(data: Any) -> str:
    """Save bytes, which msgpack sends as they are."""
    note("save", type=type(data).__name__)
    return str(data)


@singleton_task(app=app, name="clean")
def clean(account: int) -> None:
    """Clean an account, until the test has looked."""
    note("clean", account=account)
    until(lambda: notes("looked"))


def tenant_key(number: int, headers: Mapping[str, Any]) -> str:
    """Return the key of a number in the schema of its tenant."""
    return f"rebuild:{headers.get('_schema_name')}:{number}"


@singleton_task(app=app, name="rebuild", key=tenant_key, bind=True)
def rebuild(self: Any, number: int) -> None:
    """Rebuild a table of a tenant, until another tenant does so, too."""
    schema = self.request.headers["_schema_name"]
    note("rebuild", number=number, schema=schema)
    until(lambda: len({one["schema"] for one in notes("rebuild")}) > 1)


@singleton_task(app=app, name="pay", serializer="project-json")
def pay(order: Any, amount: Any) -> None:
    """Pay an order, until the test has looked."""
    note("pay", order=order, amount=amount)
    until(lambda: notes("looked"))
