"""Keys and facts are text that is taken as it is: each names one lock and no other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import Holder
from celery_redlock.errors import ConfigurationError, LockHeld

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock

pytestmark = pytest.mark.every_server


def test_keys_are_independent(redlock: Redlock, key: str) -> None:
    """Other keys of the same execution and other prefixes are other locks."""
    one = redlock.acquire(f"{key}:1")
    two = redlock.acquire(f"{key}:2")

    assert one.is_valid()
    assert two.is_valid()
    redlock.release(one)
    assert redlock.inspect(f"{key}:2").holder
    redlock.release(two)


@pytest.mark.parametrize(
    "text",
    [
        "with space",
        "ünïcode ☃",
        "{hash}tag",
        "quote'\"\\",
        "*?[a]",
        "nul\0tab\t",
        "x" * 5000,
    ],
    ids=["space", "unicode", "braces", "quotes", "glob", "control", "long"],
)
def test_key_is_taken_literally(redlock: Redlock, text: str, key: str) -> None:
    """Whatever one line of text a key is, it locks that and nothing else."""
    name = f"{key}{text}"
    lease = redlock.acquire(name)

    with pytest.raises(LockHeld):
        redlock.acquire(name)

    found = redlock.inspect(name)
    assert found.holder
    assert found.holder.token == lease.token
    assert redlock.release(lease) >= 3


@pytest.mark.parametrize("name", ["", "two\nlines"])
def test_key_must_be_one_line(redlock: Redlock, name: str) -> None:
    """A key that could not be read back is refused before anything is sent."""
    with pytest.raises(ConfigurationError, match="one line"):
        redlock.acquire(name)


def test_facts_cannot_forge_a_field(redlock: Redlock, key: str) -> None:
    """A line feed in a task's name does not move the fields after it."""
    facts = Holder.here(task="evil\nforged-id\nhost", task_id="real")
    lease = redlock.acquire(key, facts=facts)

    holder = redlock.inspect(key).holder

    assert holder
    assert holder.task_id == "real"
    assert holder.pid == os.getpid()
    redlock.release(lease)
