"""Check one value that somebody wrote into a setting or an option.

Each check returns the value as it is used, or raises ``ConfigurationError`` with
its name, what is wrong with it and the remedy.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery_redlock.core.address import parse_nodes
from celery_redlock.core.timing import seconds_of
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.address import NodeAddress

__all__ = ["flag", "naming", "nodes", "prefix", "seconds_or_none_at_all"]


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Begin what is said of a mistake with where it was made."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from error.__cause__


def flag(name: str, value: Any) -> None:
    """Check that it is True or False, and nothing like it."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} is {value!r}; it must be True or False.")


def seconds_or_none_at_all(name: str, value: Any) -> float:
    """Return a duration in seconds that may be 0, for "not at all"."""
    is_zero = value in (0, timedelta(0)) and not isinstance(value, bool)
    return 0.0 if is_zero else seconds_of(name, value)


def prefix(name: str, value: Any) -> str:
    """Return what all keys on the nodes begin with."""
    if not isinstance(value, str) or not re.fullmatch(r"\S+", value):
        raise ConfigurationError(
            f"{name} is {value!r}; it must be text without spaces."
        )
    return value


def nodes(name: str, value: Any) -> tuple[NodeAddress, ...]:
    """Return the nodes that a list of URLs names."""
    if not isinstance(value, (list, tuple)) or not value:
        # Do not show it: a text may be a URL with a password.
        fact = f"is of type {type(value).__name__}" if value else "is not set"
        raise ConfigurationError(
            f"{name} {fact}. Nothing can be locked; set it to a list of URLs of "
            'independent Redis masters, such as ["redis://a:6379/0", ...].'
        )
    with naming(name):
        return parse_nodes(value)
