"""What can be told of the scripts without running them; ``tests/contract`` does."""

from __future__ import annotations

import hashlib
import re

import pytest

from celery_redlock.core import scripts
from celery_redlock.core.scripts import ALL_SCRIPTS, Script

NAMED = pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda script: script.name)
ALLOWED = {  # what the ACL of the lock user has to allow, besides EVAL and EVALSHA
    "DEL",
    "GET",
    "HDEL",
    "HGET",
    "HGETALL",
    "HMGET",
    "HSET",
    "INFO",
    "PEXPIRE",
    "PTTL",
    "PUBLISH",
    "SET",
    "TIME",
    "ZADD",
    "ZPOPMIN",
    "ZREM",
}


def test_all_scripts_are_all_scripts() -> None:
    """Each has a name and a SHA of its own."""
    found = {value for value in vars(scripts).values() if isinstance(value, Script)}

    assert set(ALL_SCRIPTS) == found
    assert len({script.sha for script in found}) == len(found)
    assert len({script.name for script in found}) == len(found) >= 9


@NAMED
def test_sha_is_that_of_the_source(script: Script) -> None:
    """In hex and lower case, as servers say it."""
    sha = hashlib.sha1(script.source.encode(), usedforsecurity=False).hexdigest()

    assert script.sha == sha


@NAMED
def test_script_tells_its_keys_and_arguments(script: Script) -> None:
    """The table in its first lines covers what it uses."""
    told: dict[str, set[str]] = {"KEYS": set(), "ARGV": set()}
    word = ""
    for line in re.findall(r"^--(.*)", script.source, re.MULTILINE):
        word = line.split()[0] if line.split()[0] in told else word
        if word and (word in line or line.startswith("       ")):
            told[word] |= set(re.findall(r"\b(\d)(?:\.\.\.)? ", line))

    for word, numbers in told.items():
        used = set(re.findall(rf"{word}\[(\d)\]", script.source))
        assert used <= numbers, word


@NAMED
def test_script_uses_the_commands_that_an_acl_allows(script: Script) -> None:
    """No KEYS, no CONFIG, nothing that an operator must not grant."""
    used = set(re.findall(r"redis\.p?call\('(\w+)'", script.source))

    assert used <= ALLOWED


@NAMED
def test_only_a_wake_up_may_fail_in_silence(script: Script) -> None:
    """Everything else ends the script with the error."""
    silent = set(re.findall(r"redis\.pcall\('(\w+)'", script.source))

    assert silent <= {"PUBLISH", "ZPOPMIN"}


@NAMED
def test_script_names_only_keys_that_it_was_given(script: Script) -> None:
    """So that an ACL by key pattern, and a proxy, can tell what it touches."""
    first_words = re.findall(r"redis\.p?call\('(\w+)', *([^,)]+)", script.source)
    without = ("INFO", "PUBLISH", "TIME")
    keys = [word for command, word in first_words if command not in without]

    assert keys
    assert {re.sub(r"\d", "n", word) for word in keys} == {"KEYS[n]"}


@NAMED
def test_script_leaves_nothing_global(script: Script) -> None:
    """Redis refuses scripts that write global variables."""
    assigned = re.findall(r"^\s*(\w+) = ", script.source, re.MULTILINE)
    local = re.findall(r"local (?:function )?([\w, ]+)", script.source)

    names = {name for group in local for name in re.split(r",\s*", group.strip())}
    assert set(assigned) <= names


def test_statuses_are_as_in_the_table() -> None:
    """The numbers travel: they are the protocol."""
    statuses = (
        scripts.GRANTED,
        scripts.TAKEN,
        scripts.FREE,
        scripts.QUARANTINED,
        scripts.UNSYNCED,
        scripts.MISCONFIGURED,
    )

    assert statuses == (1, 2, 3, 4, 5, 6)
