"""Read the values of options and settings: flags, and errors that name them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Prefix a ConfigurationError with the name of the option or the task."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from error.__cause__


def flag(name: str, value: object) -> None:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} is {value!r}; it must be True or False.")
