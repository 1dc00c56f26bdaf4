"""Two tasks, the keys of their calls, and values that calls may have."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import date  # noqa: TC003  (pydantic reads it)
from typing import TYPE_CHECKING, Any
from uuid import UUID

from hypothesis import strategies as st
from kombu import serialization
from pydantic import BaseModel

from celery_redlock.fingerprint import KeyRule

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ID",
    "UNDECIDABLE",
    "Invoice",
    "Order",
    "f",
    "f_any",
    "key",
    "key_any",
    "rule_of",
    "scalars",
    "sent",
    "values",
]

ID = UUID("0123456789abcdef0123456789abcdef")
UNDECIDABLE: Any = object()


def f(a: Any, b: Any = 2) -> None:
    """Be the task of most tests."""


def f_any(a: Any, *rest: Any, b: Any = 2, **more: Any) -> None:
    """Be a task that takes anything."""


def rule_of(function: Callable[..., object] = f, **options: Any) -> KeyRule:
    """Return the rule by which calls of a function are named."""
    return KeyRule("proj.f", inspect.signature(function), **options)


def key(*args: Any, **kwargs: Any) -> str:
    """Return the key of a call of ``f``."""
    return rule_of().key_of(args, kwargs)


def key_any(*args: Any, **kwargs: Any) -> str:
    """Return the key of a call of ``f_any``."""
    return rule_of(f_any).key_of(args, kwargs)


def sent(value: Any) -> Any:
    """Send a value through a broker's JSON."""
    registry: Any = serialization
    content_type, encoding, data = registry.dumps(value, serializer="json")
    return registry.loads(data, content_type, encoding)


@dataclass
class Order:
    """Something that a pickled message can hold."""

    number: int
    day: date


class Invoice(BaseModel):
    """Something that a task with ``pydantic=True`` takes."""

    number: int
    day: date


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.times()
    | st.datetimes(timezones=st.none() | st.timezones())
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=8,
)
