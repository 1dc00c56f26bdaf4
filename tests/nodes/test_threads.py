"""Threads that share one service: they take turns, and answers are not mixed up."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING

from celery_redlock.locking import lock
from tests.nodes.support import client, run_threads, until_nothing_is_left

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes


class Till:
    """A counter that loses increments unless one at a time makes them."""

    def __init__(self) -> None:
        self.amount = 0
        self.inside = 0
        self.overlaps = 0

    def increment(self) -> None:
        """Read, dawdle, write."""
        self.inside += 1
        self.overlaps += self.inside > 1
        amount = self.amount
        time.sleep(0.0002)  # stands for the work of a body
        self.amount = amount + 1
        self.inside -= 1


def test_threads_share_one_service(three_nodes: DevNodes, key: str) -> None:
    """Eight threads on one `Redlock` increment a counter, none of it is lost."""
    till, each = Till(), 25
    with client(three_nodes, node_timeout=1.0) as redlock:

        def work() -> None:
            for _ in range(each):
                with lock(redlock, key, wait=60):
                    till.increment()

        run_threads(*[work] * 8)
    assert till.amount == 8 * each
    assert till.overlaps == 0
    until_nothing_is_left(three_nodes)


def test_threads_with_many_keys_do_not_mix_them_up(
    three_nodes: DevNodes, key: str
) -> None:
    """Replies that come interleaved over one connection reach who asked for them."""
    tills = [Till() for _ in range(3)]
    made: Counter[int] = Counter()
    with client(three_nodes, node_timeout=1.0) as redlock:

        def work(seed: int) -> None:
            chance = random.Random(seed)  # noqa: S311  (no secret)
            for _ in range(40):
                number = chance.randrange(3)
                with lock(redlock, f"{key}:{number}", wait=60) as lease:
                    assert lease.key == f"{key}:{number}"
                    holder = redlock.inspect(lease.key).holder
                    assert holder
                    assert holder.token == lease.token
                    tills[number].increment()
                    made[number] += 1

        run_threads(*[lambda seed=seed: work(seed) for seed in range(6)])
    assert [till.amount for till in tills] == [made[n] for n in range(3)]
    assert not any(till.overlaps for till in tills)
