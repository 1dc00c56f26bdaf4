"""Publishes jobs at random times until SIGTERM.

``python -m tests.torture.producer SEED JOBS KIND...``. After so many jobs it only waits
(0: there is no end); without kinds, it sends jobs of all kinds. It records the moment
before a job is published as "sending", and the moment after as "sent". Only sent jobs
must not be lost.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import uuid
from typing import Any

from celery import chord
from kombu.exceptions import ChannelError

from tests.torture import CELLS, COUNTERS, EFFECTS, LONG, SETS

READY = "jobs are being published"
_CROWD = 40  # it waits while the queue has more messages
_MEAN_PAUSE = 0.3  # seconds
_MEAN_PAUSE_OF_MANY = 0.1  # the same, while a number of jobs is to be sent

# How often each kind of jobs is chosen. Those with effects in a database are sent only
# where they are asked for.
KINDS = {
    "count": 26,
    "wait": 8,
    "skip": 8,
    "soft limit": 5,
    "hard limit": 4,
    "retries": 8,
    "transfer": 16,
    "write": 18,
    "add": 18,
    "chord": 5,
    "limited": 10,
    "once": 0,
    "often": 0,
}
_TWICE = 0.05  # the share of jobs with effects that a client sends twice, with one id
_LONG = 0.01  # the share of them that last longer than the visibility timeout


class Producer:
    """Chooses jobs with one seed."""

    def __init__(self, seed: str, jobs: int, kinds: list[str]) -> None:
        from tests.torture import project  # noqa: PLC0415  (it needs settings)

        self._jobs = project
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._weights = {kind: KINDS[kind] or 1 for kind in kinds}
        self._weights = self._weights or KINDS
        self._jobs_to_send, self._sent = jobs, 0

    def publish(self) -> None:
        """Publish one job, or one chord of them."""
        kind = self._random.choices([*self._weights], [*self._weights.values()])[0]
        call = self._calls()[kind]
        self._jobs.journal.note("sending", kind=kind)
        try:
            result = call.apply_async()
            if kind in EFFECTS and self._random.random() < _TWICE:
                call.apply_async()
        except Exception as error:  # noqa: BLE001  (each transport has its own)
            self._jobs.journal.note("unsent", kind=kind, error=repr(error))
            return
        self._sent += 1
        self._jobs.journal.note("sent", kind=kind, task_id=result.id)
        for part in getattr(result.parent, "results", None) or ():
            self._jobs.journal.note(
                "sent", kind="chord part", task_id=part.id, chord=result.id
            )

    def _calls(self) -> dict[str, Any]:
        """Return a call of each kind, with arguments at random."""
        jobs, dice = self._jobs, self._random
        seconds, counter = round(dice.uniform(0.05, 0.6), 3), dice.choice(COUNTERS)
        count = jobs.count.s(counter, seconds)
        write = jobs.write.s(dice.choice(CELLS), seconds)
        add = jobs.add.s(dice.choice(SETS), seconds)
        pair = dice.sample(COUNTERS, 2)
        job = str(uuid.UUID(int=dice.getrandbits(128)))
        time = LONG if dice.random() < _LONG else seconds
        return {
            "once": jobs.once.s(job, time).set(task_id=job),
            "often": jobs.often.s(job, time).set(task_id=job),
            # Some are long enough for a few renewals.
            "count": jobs.count.s(counter, seconds * dice.choice([1, 1, 1, 8])),
            "wait": jobs.count_wait.s(counter, seconds),
            "skip": jobs.count_skip.s(counter, seconds),
            "soft limit": jobs.count.s(counter, 2.0).set(soft_time_limit=0.7),
            "hard limit": jobs.count.s(counter, 2.0).set(time_limit=1.0),
            "retries": jobs.count.s(counter, seconds, dice.randint(1, 3)),
            "transfer": jobs.transfer.s(*pair, seconds * dice.choice([1, 1, 1, 8])),
            # Some outlast their lease if it is lost, and only the fence refuses them.
            "write": jobs.write.s(dice.choice(CELLS), seconds * dice.choice([1, 1, 8])),
            "add": add,
            "chord": chord([count, write, add], jobs.tail.s()),
            # So long that all permits are in use most of the time.
            "limited": jobs.limited.s(4 * seconds, dice.choice([0, 0, 0, 1])),
        }

    @property
    def has_sent_all(self) -> bool:
        """Whether as many jobs were sent as wanted."""
        return 0 < self._jobs_to_send <= self._sent

    def pause(self, end: threading.Event) -> None:
        """Wait for a while, longer while the queue is crowded."""
        mean = _MEAN_PAUSE_OF_MANY if self._jobs_to_send else _MEAN_PAUSE
        end.wait(self._random.expovariate(1 / mean))
        while not end.is_set() and self._is_crowded():
            end.wait(0.3)

    def _is_crowded(self) -> bool:
        try:
            with self._jobs.app.connection_for_read() as connection:
                queue = connection.default_channel.queue_declare("celery", passive=True)
                return bool(queue.message_count > _CROWD)
        except ChannelError:  # there is no such queue: Redis keeps no empty ones
            return False
        except Exception:  # noqa: BLE001  (the broker is down: do not publish now)
            return True


def main(seed: str, jobs: str = "0", *kinds: str) -> None:
    """Publish until SIGTERM."""
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    producer = Producer(seed, int(jobs), [*kinds])
    print(READY, flush=True)  # noqa: T201  (the site waits for this line)
    while not end.is_set():
        if producer.has_sent_all:
            end.wait()
            break
        producer.publish()
        producer.pause(end)


if __name__ == "__main__":
    main(*sys.argv[1:])
