"""etcd: what comes between a snapshot and its commit."""

from __future__ import annotations

from contextlib import closing

import pytest

from celery_redlock.scripts import GRANTED, TAKEN
from celery_redlock.stores.etcd import Etcd
from tests.stores.commands import acquire, once_before, vote

TIMEOUT = 5.0  # seconds
pytestmark = pytest.mark.long


def test_scan_in_a_batch_leaves_the_checks_of_the_others(
    etcd_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grant beside it is refused where another client has taken the lock."""
    with (
        closing(Etcd(etcd_store, TIMEOUT)) as late,
        closing(Etcd(etcd_store, TIMEOUT)) as others,
    ):
        meta, lock = b"scanned:meta", b"scanned"
        vote(others, meta)
        act = lambda: others.run([acquire(lock, meta, b"theirs", b"4")])  # noqa: E731
        once_before(monkeypatch, late, "scan", act)
        granting = acquire(lock, meta, b"ours", b"3")
        reply, _ = late.run([granting, [b"SCAN", b"0", b"MATCH", b"scanned:*"]])
        assert reply[0] == TAKEN
        assert others.run([acquire(lock, meta, b"theirs", b"4")])[0][0] == GRANTED
