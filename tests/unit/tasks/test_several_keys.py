"""A task with several keys: it runs while it has all of them."""

from __future__ import annotations

from typing import Any

import pytest
from celery import states

from celery_redlock.errors import ConfigurationError, LockHeld
from celery_redlock.locking import current_lease
from tests.unit.tasks.support import Worker

KEYS = ["account:{source}", "account:{target}"]


def transfers(worker: Worker, seen: list[Any], **options: Any) -> Any:
    """Return a task that moves money between two accounts."""
    options = {"name": "transfer", "key": None, "keys": KEYS, **options}

    @worker.task(**options)
    def transfer(source: str, target: str) -> None:
        lease = current_lease()
        seen.append(lease and (lease.keys, lease.fence))

    return transfer


def test_body_runs_under_all_keys(worker: Worker) -> None:
    """One lease has both, in any order of the templates."""
    seen: list[Any] = []
    transfer = transfers(worker, seen)

    assert worker.run(transfer, "b", "a").state == states.SUCCESS
    assert worker.run(transfer, "a", "b").state == states.SUCCESS

    keys, fences = zip(*seen, strict=True)
    assert keys == (("account:a", "account:b"),) * 2
    assert fences[0] < fences[1]


def test_explain_names_the_key_that_is_held(worker: Worker) -> None:
    """It changes nothing."""
    transfer = transfers(worker, [])
    lease = worker.rival.acquire("account:b")

    found = transfer.explain("a", "b")

    assert not found.would_run
    assert "the keys 'account:a' and 'account:b'" in str(found)
    assert "The key 'account:b' is held by" in str(found)
    worker.rival.release(lease)
    assert transfer.explain("a", "b").would_run


def test_conflict_says_which_key_is_held(worker: Worker) -> None:
    """Policies, and receivers of the signal, get this key beside the text of all."""
    conflicts: list[Any] = []

    def note(conflict: Any) -> str:
        conflicts.append(conflict)
        return "raise"

    transfer = transfers(worker, [], on_conflict=note)
    lease = worker.rival.acquire("account:b")

    error = worker.run(transfer, "b", "a").result

    (conflict,) = conflicts
    assert conflict.key == "account:a\naccount:b"
    assert conflict.held_key == "account:b"
    assert "The lock 'account:b' is held" in str(error)
    worker.rival.release(lease)


def test_rule_of_several_keys_is_shown_with_all_of_them(worker: Worker) -> None:
    """The doctor compares it among workers."""
    rule = repr(transfers(worker, []).key_rule)

    assert f"keys={KEYS!r}" in rule


def test_lock_of_a_task_with_several_keys(worker: Worker) -> None:
    """``task.lock`` takes all of them, too."""
    transfer = transfers(worker, [])

    with transfer.lock("a", "b") as lease:
        assert lease.keys == ("account:a", "account:b")
        with pytest.raises(LockHeld):
            worker.rival.acquire("account:a")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keys": []}, "must be a list of templates"),
        ({"keys": "account:{source}"}, "must be a list of templates"),
        ({"keys": ["a:{source}", 5]}, "must be a list of templates"),
        ({"key": "a"}, "keys and key both"),
        ({"unique_on": ["source"]}, "keys and unique_on both"),
        ({"keys": ["a:{sorce}"]}, "'sorce'.*Did you mean 'source'"),
        ({"keys": ["source", "target"]}, r"Write '\{source\}'"),
        ({"keys": {"source": 2}}, r"Write '\{source\}'"),
        ({"keys": ["a:{source"]}, "cannot be used"),
        ({"on_conflict": "buffer_one"}, "needs one key"),
        ({"on_conflict": "cancel_running"}, "needs one key"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_when_decorated(
    worker: Worker, options: dict[str, Any], words: str
) -> None:
    """The error says what to write instead."""
    with pytest.raises(ConfigurationError, match=words):
        transfers(worker, [], **options).lock_key("a", "b")
