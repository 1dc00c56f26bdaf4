"""Rules for the text of every script; ``tests/contract`` runs the scripts."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from celery_redlock import scripts
from celery_redlock.scripts import ALL_SCRIPTS, Script
from celery_redlock.stores import needs

FOLDER = Path(scripts.__file__).parent
LOOKED = "redis.pcall('HSET', meta, 'looked'"
EACH_SCRIPT = pytest.mark.parametrize(
    "script", ALL_SCRIPTS, ids=lambda script: script.name
)
ALLOWED = {  # what the ACL of the lock user has to allow, besides EVAL and EVALSHA
    *("DEL", "GET", "HDEL", "HGET", "HGETALL", "HMGET", "HSET", "HSTRLEN", "INFO"),
    *("MGET", "PEXPIRE", "PTTL", "PUBLISH", "SET", "TIME", "ZADD", "ZCARD", "ZPOPMIN"),
    *("ZRANGEBYSCORE", "ZRANK", "ZREM", "ZREMRANGEBYSCORE", "ZREVRANGE", "ZSCORE"),
}


def table_of(script: Script, word: str) -> dict[str, str]:
    """Return number -> name from the KEYS or ARGV table of a script."""
    table = re.search(
        rf"^-- {word}( .*(?:\n--  .*)*)", own_text(script), flags=re.MULTILINE
    )
    found = re.findall(r" {2,}(\d)(?:\.\.\.)? (\w+)", table[1] if table else "")
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    return dict(found)


def names_in(source: str, word: str) -> dict[str, str]:
    """Return number -> local name, where KEYS or ARGV are given names."""
    named = {}
    for names, values in re.findall(
        r"^local ([\w, ]+) = (.*(?:KEYS|ARGV)\[\d\].*)$", source, flags=re.MULTILINE
    ):
        for name, value in zip(names.split(", "), values.split(", "), strict=True):
            if found := re.search(rf"{word}\[(\d)\]", value):
                named[found[1]] = name
    return named


def own_text(script: Script) -> str:
    """Return a script's file, includes not resolved."""
    return (FOLDER / f"{script.name}.lua").read_text()


def test_every_file_is_loaded_under_its_name() -> None:
    """`ACQUIRE` is ``acquire.lua``; no file of the folder is left over."""
    constants = {
        name: value for name, value in vars(scripts).items() if type(value) is Script
    }

    assert {name.lower(): value for name, value in constants.items()} == {
        script.name: script for script in ALL_SCRIPTS
    }
    files = {path.stem for path in FOLDER.glob("*.lua")}
    assert files == {script.name for script in ALL_SCRIPTS}


def test_every_shared_file_is_included() -> None:
    """A file in ``shared`` is there for at least two scripts."""
    for path in (FOLDER / "shared").iterdir():
        text = re.sub(r"^-- include \S+\n", "", path.read_text(), flags=re.MULTILINE)
        assert sum(text in script.source for script in ALL_SCRIPTS) > 1, path.name


@EACH_SCRIPT
def test_includes_are_resolved_in_place(script: Script) -> None:
    """A node gets one text that includes nothing. What is included twice comes once."""
    included: set[str] = set()

    def resolved(text: str) -> str:
        return re.sub(r"^-- include (\S+)\n", replaced, text, flags=re.MULTILINE)

    def replaced(found: re.Match[str]) -> str:
        if found[1] in included:
            return ""
        included.add(found[1])
        return resolved((FOLDER / found[1]).read_text())

    assert script.source == resolved(own_text(script))
    assert "-- include" not in script.source


def test_source_can_be_printed_for_redis_cli() -> None:
    """``redis-cli --eval`` needs a script with its includes resolved."""
    command = [sys.executable, "-m", "celery_redlock.scripts", "release"]

    printed = subprocess.run(  # noqa: S603  (our own module)
        command, capture_output=True, text=True, check=True
    ).stdout

    assert printed == scripts.RELEASE.source


@EACH_SCRIPT
def test_sha_is_that_of_the_source(script: Script) -> None:
    """In hex and lower case, as servers print it."""
    sha = hashlib.sha1(script.source.encode(), usedforsecurity=False).hexdigest()

    assert script.sha == sha
    assert [other.sha for other in ALL_SCRIPTS].count(sha) == 1


@EACH_SCRIPT
@pytest.mark.parametrize("word", ["KEYS", "ARGV"])
def test_script_gives_its_arguments_the_names_of_its_table(
    script: Script, word: str
) -> None:
    """The table at its top numbers and names all that it uses."""
    table = table_of(script, word)

    assert names_in(script.source, word).items() <= table.items()
    assert set(re.findall(rf"{word}\[(\d)\]", script.source)) <= set(table)


@EACH_SCRIPT
def test_script_says_what_it_does_with_each_key(script: Script) -> None:
    """Stores read that: ``stores.needs`` has the words."""
    words = set(re.findall(r"^(\w+)  +[A-Z]", needs.__doc__ or "", re.MULTILINE))
    (table,) = re.findall(r"^-- KEYS .*", own_text(script), re.MULTILINE)
    told = re.findall(r"\[([^]]*)\]", table)

    assert len(told) == len(
        re.findall(r"(?:\d|then|and)(?:\.\.\.)? (?:the )?\w+ \[", table)
    )
    assert len(told) >= len(table_of(script, "KEYS"))
    assert {word for use in told for word in use.split(", ")} <= words


@EACH_SCRIPT
def test_script_tells_its_replies(script: Script) -> None:
    """The statuses that it returns are those of its table."""
    table = own_text(script).partition("-- Returns ")[2].partition("-- include")[0]
    told = set(re.findall(r"\{([A-Z]+)\b", table))
    used = set(re.findall(r"return \{([A-Z]+)\b", own_text(script)))

    assert table
    assert used <= told


@EACH_SCRIPT
def test_script_uses_the_commands_that_an_acl_allows(script: Script) -> None:
    """No KEYS, no CONFIG, nothing that an operator must not grant."""
    used = set(re.findall(r"redis\.p?call\('(\w+)'", script.source))

    assert used <= ALLOWED


@EACH_SCRIPT
def test_only_display_and_wake_ups_may_fail_silently(script: Script) -> None:
    """A lock depends neither on its wait queue nor on the record of a release."""
    source = script.source.replace(LOOKED, "")  # without it, the next call looks
    silent = re.findall(r"redis\.pcall\('(\w+)', *(\w+)", source)

    assert set(silent) <= {
        ("PUBLISH", "channel"),
        ("ZPOPMIN", "wait_queue"),
        ("ZRANGEBYSCORE", "wait_queue"),
        ("ZREM", "wait_queue"),
        ("HGET", "releases"),
        ("HSET", "releases"),
        ("GET", "KEYS"),  # of several leases: told when each is renewed by itself
    }


@EACH_SCRIPT
def test_script_touches_only_keys_that_it_was_given(script: Script) -> None:
    """An ACL by key pattern, and a proxy, can tell which keys it touches."""
    calls = re.findall(r"redis\.p?call\('(\w+)', *([^,)]+)", script.source)
    without_key = ("INFO", "PUBLISH", "TIME")
    keys = {key for command, key in calls if command not in without_key}
    given = set(names_in(script.source, "KEYS").values())
    given |= set(re.findall(r"local (\w+) = KEYS\[[^]]+\]", script.source))

    assert keys
    # The names of permits are made of the key of a limit: shared/permits.lua.
    given |= {"unpack(names", "names[i]"} if "permits_of" in script.source else set()
    assert {key for key in keys if not key.startswith("KEYS[")} <= given


@EACH_SCRIPT
def test_script_leaves_nothing_global(script: Script) -> None:
    """Redis refuses scripts that write global variables."""
    assigned = re.findall(
        r"^ *(?! |local |for )([\w, ]+) =\s", script.source, re.MULTILINE
    )
    local = re.findall(r"local (?:function )?([\w, ]+)", script.source)

    def names(groups: list[str]) -> set[str]:
        return {name for group in groups for name in re.split(r",\s*", group.strip())}

    assert names(assigned) <= names(local)


def test_statuses_are_the_same_in_lua() -> None:
    """The numbers travel: they are the protocol."""
    shared = (FOLDER / "shared/statuses.lua").read_text()
    names, values = re.findall(r"^local (.*) = (.*)$", shared, re.MULTILINE)[0]
    in_lua = dict(zip(names.split(", "), map(int, values.split(", ")), strict=True))

    assert in_lua == {name: getattr(scripts, name) for name in in_lua}
    assert list(in_lua.values()) == [1, 2, 3, 4, 5, 6, 7]
