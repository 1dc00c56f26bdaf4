"""The options of tasks whose effects happen once: which values, which together."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_redlock import ConfigurationError, LockOptions

IN_DEFAULT: dict[str, Any] = {"exactly_once_in": "default"}
PER_KEY: dict[str, Any] = {**IN_DEFAULT, "exactly_once_per": "key"}


async def make_session() -> None:
    """Act as a callable that returns a session of asyncio."""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exactly_once_in": ""}, "must be the alias of a Django database"),
        ({"exactly_once_in": 7}, "or a callable that returns a session"),
        ({"exactly_once_in": make_session}, "is an async function"),
        ({**IN_DEFAULT, "exactly_once_per": "keys"}, "Did you mean 'key'"),
        (PER_KEY, "needs exactly_once_for"),
        ({**IN_DEFAULT, "exactly_once_for": 60}, "no effect with exactly_once_per"),
        ({**PER_KEY, "exactly_once_for": 0}, "exactly_once_for"),
        ({**IN_DEFAULT, "exactly_once_failures": 1}, "must be True or False"),
        ({**IN_DEFAULT, "record_keep": -1}, "record_keep"),
        (
            {**PER_KEY, "exactly_once_for": 60, "record_keep": 30},
            "less than exactly_once_for",
        ),
        ({**PER_KEY, "exactly_once_for": 60, "limit": 2}, "one call of the key"),
        ({"exactly_once_per": "key"}, "without exactly_once_in"),
        ({"exactly_once_for": timedelta(days=1)}, "without exactly_once_in"),
        ({"exactly_once_failures": True}, "without exactly_once_in"),
        ({"record_keep": 60}, "without exactly_once_in"),
    ],
)
def test_wrong_option_is_refused_when_the_task_is_decorated(
    options: dict[str, Any], said: str
) -> None:
    """The error names the option and the remedy."""
    with pytest.raises(ConfigurationError, match=said):
        LockOptions(**options)


@pytest.mark.parametrize(
    "options",
    [
        IN_DEFAULT,
        {"exactly_once_in": lambda: None},
        {**PER_KEY, "exactly_once_for": timedelta(days=40)},
        {**IN_DEFAULT, "record_keep": timedelta(days=1), "limit": 3},
        {**IN_DEFAULT, "exactly_once_failures": True},
    ],
)
def test_right_options_are_taken(options: dict[str, Any]) -> None:
    """No database is looked at: Django may not be set up yet."""
    assert LockOptions(**options).exactly_once_in is not None
