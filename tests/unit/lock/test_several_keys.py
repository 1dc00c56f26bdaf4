"""Several keys that are taken together: one token, one lease, one fence."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.errors import ConfigurationError, LockHeld, LockLost
from celery_redlock.locking import current_lease, lock
from celery_redlock.scripts.keys import shown, text_of
from celery_redlock.testing import FakeNodes
from celery_redlock.wire.quorum import Verdict
from tests.unit.lock.support import Site, asked, forget

PAIR = ["b", "a"]


def there(nodes: FakeNodes, key: str) -> list[bool]:
    """Tell for each node whether it has a lock of this key."""
    name = f"redlock:lock:{key}".encode()
    return [node.memory.redis.get(name) is not None for node in nodes.nodes]


def test_messages_name_few_of_many_keys() -> None:
    """A message about 100 keys stays short."""
    assert shown(text_of("ab")) == "'a' and 'b'"
    assert shown(text_of("abcd")) == "'a' and 'b' and 'c' and 'd'"
    assert shown(text_of("abcdefg")) == "'a' and 'b' and 'c' and 4 more"


def test_all_keys_are_taken_in_one_round_trip(site: Site) -> None:
    """One lease has all of them, each once, with one fence."""
    lease = site.redlock.acquire([*PAIR, "a"])

    assert lease.keys == ("a", "b")
    assert asked(site.nodes) == ["acquire"]
    assert there(site.nodes, "a") == there(site.nodes, "b") == [True] * 5
    assert site.redlock.release(lease) >= site.redlock.quorum
    assert there(site.nodes, "a") == there(site.nodes, "b") == [False] * 5


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ("", "The key '' cannot be used: it is empty"),
        ("  ", "The key '  ' cannot be used: it is empty"),
        ("a\nb", r"The key 'a\\nb' .* the character '\\n' is not printable"),
        ("a\0b", r"The key 'a\\x00b' .* the character '\\x00' is not printable"),
        ("a\u2028", r"the character '\\u2028' is not printable"),
        (1, "The key 1 cannot be used: it is int and not text"),
        (None, "The key None cannot be used: it is NoneType and not text"),
        (b"x", "The key b'x' cannot be used: it is bytes and not text"),
        ([], r"The key \[\] cannot be used: it is empty"),
        ({}, "The key {} cannot be used: it is empty"),
        (["a", ""], "The key '' cannot be used: it is empty"),
        (["a", "b\nc"], r"the character '\\n' is not printable"),
        ([1, 2], "The key 1 cannot be used: it is int and not text"),
        ([b"a", "b"], "it is bytes and not text"),
        ([None], "it is NoneType and not text"),
        ("file-\udcff.txt", r"the character '\\udcff' has no UTF-8"),
        (["a", "\ud800"], r"the character '\\ud800' has no UTF-8"),
        ("a" * 8193, "A key of 8,193 bytes is too long"),
        (["a" * 8193], "A key of 8,193 bytes is too long"),
        ("é" * 4097, "A key of 8,194 bytes is too long"),
        ([str(number) for number in range(101)], "101 keys are too many"),
        (["a" * 5000, "b" * 3200], "2 keys of 8,201 bytes are too long"),
        (["é" * 4000, "a" * 200], "2 keys of 8,201 bytes are too long"),
    ],
    ids=lambda value: f"{value!r:.30}",
)
def test_keys_must_fit(site: Site, keys: Any, fault: str) -> None:
    """Nothing is sent for keys that cannot be taken together."""
    with pytest.raises(ConfigurationError, match=fault):
        site.redlock.acquire(keys)
    with pytest.raises(ConfigurationError, match=fault), lock(site.redlock, keys):
        pass

    assert asked(site.nodes) == []


def test_as_many_keys_as_there_can_be(site: Site) -> None:
    """A hundred, as long as all of them may be together; equal ones count once."""
    keys = [f"{number:02}".rjust(80, "k") for number in range(100)]

    lease = site.redlock.acquire([*keys[:50], *keys])

    assert len(lease.keys) == 100
    assert len(lease.key) == 100 * 80 + 99
    assert site.redlock.release(lease) >= site.redlock.quorum


def test_one_long_key_is_no_set(site: Site) -> None:
    """One key may be as long as several together."""
    long = "k" * 8192

    assert site.redlock.acquire([long, long]).keys == (long,)


def test_one_key_in_a_list_is_that_key(site: Site) -> None:
    """It excludes a client that names it without a list."""
    site.redlock.acquire(["a"])

    with pytest.raises(LockHeld):
        site.rival.acquire("a")


@pytest.mark.parametrize("held", ["a", "b"])
def test_none_is_taken_if_one_is_held(site: Site, held: str) -> None:
    """The error names the key and its holder. The other key stays free."""
    site.rival.acquire(held)

    with pytest.raises(LockHeld, match=rf"The lock '{held}' is held by .*'a' and 'b'"):
        site.redlock.acquire(PAIR)
    (other,) = {"a", "b"} - {held}
    assert there(site.nodes, other) == [False] * 5


def test_two_holders_of_two_keys_are_held_and_not_split(site: Site) -> None:
    """A majority names one holder of one key, also where nodes name two holders."""
    site.rival.acquire("a")
    site.rival.acquire("b")
    forget(site.nodes, 0)

    with pytest.raises(LockHeld) as refused:
        site.redlock.acquire(PAIR)
    assert refused.value.ballot is not None
    assert refused.value.ballot.verdict() is Verdict.HELD


def test_fence_is_greater_than_those_of_each_key(site: Site) -> None:
    """A later grant of one of the keys has a greater fence than the pair had."""
    fences = []
    for keys in (["a"], PAIR, ["b"], PAIR, ["a"], PAIR, ["b"]):
        lease = site.redlock.acquire(keys)
        fences.append(lease.fence)
        site.redlock.release(lease)

    assert fences == sorted(set(fences))


def test_renewal_restores_every_key(site: Site) -> None:
    """A node that lost one key gets it again, and counts."""
    lease = site.redlock.acquire(PAIR)
    for node in site.nodes.nodes:
        node.memory.redis.delete(b"redlock:lock:b")

    assert site.redlock.extend(lease)
    assert there(site.nodes, "b").count(True) >= site.redlock.quorum


def test_lease_with_a_key_that_another_client_has_is_not_confirmed(site: Site) -> None:
    """All keys count: to hold one of two is to hold none."""
    lease = site.redlock.acquire(PAIR)
    for node in site.nodes.nodes:
        node.memory.redis.delete(b"redlock:lock:b")
    site.rival.acquire("b")

    with pytest.raises(LockLost):
        lease.ensure(network=True)
    assert not site.redlock.extend(lease)


def test_block_has_the_lease_of_each_of_its_keys(site: Site) -> None:
    """To take one of them again inside the block is free."""
    with lock(site.redlock, PAIR) as lease:
        assert current_lease("a") is current_lease("b") is lease
        with lock(site.redlock, "b") as same:
            assert same is lease
