"""Checks of single values that users write into settings and options.

Each check returns the value as it is used, or raises ``ConfigurationError`` with
the name of the setting, the fault and the remedy.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery_redlock.core.timing import seconds_of
from celery_redlock.core.transport.url import parse_nodes
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.transport.url import NodeAddress

__all__ = ["flag", "naming", "nodes", "prefix", "seconds_or_zero"]


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Put the name of the place of a mistake in front of its error text."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from error.__cause__


def flag(name: str, value: Any) -> None:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} is {value!r}; it must be True or False.")


def seconds_or_zero(name: str, value: Any) -> float:
    """Return a duration in seconds, which may be 0."""
    is_zero = value in (0, timedelta(0)) and not isinstance(value, bool)
    return 0.0 if is_zero else seconds_of(name, value)


def prefix(name: str, value: Any) -> str:
    """Return the prefix of all keys on the nodes."""
    if not isinstance(value, str) or not re.fullmatch(r"\S+", value):
        raise ConfigurationError(
            f"{name} is {value!r}; it must be text without spaces."
        )
    return value


def nodes(name: str, value: Any) -> tuple[NodeAddress, ...]:
    """Return the nodes that a list of URLs names."""
    if not isinstance(value, (list, tuple)) or not value:
        # Do not show the value: it may be a URL with a password.
        fact = f"is of type {type(value).__name__}" if value else "is not set"
        raise ConfigurationError(
            f"{name} {fact}. Nothing can be locked; set it to a list of URLs of "
            'independent Redis masters, such as ["redis://a:6379/0", ...].'
        )
    with naming(name):
        return parse_nodes(value)
