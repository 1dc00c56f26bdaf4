"""Draw the timelines of docs/duplicates.md from real runs.

::

    python docs/pictures/duplicates.py [NAME ...]

Starts three lock nodes, a broker and a worker, publishes some calls of one task per
picture, and draws what they wrote down: docs/pictures/duplicates/NAME.svg. Who has the
lock, the claim or a cool-down is asked of the nodes meanwhile, every 20 ms.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from timeline import Bar, Lane, draw  # noqa: E402  (the path comes first)

from celery_redlock.claims import Claims  # noqa: E402
from celery_redlock.core.redlock import Redlock  # noqa: E402
from celery_redlock.devnodes import DevNode, DevNodes  # noqa: E402

_LOOK_EVERY, _SHORT = 0.02, 0.06  # seconds
_ENDED = {"SUCCESS", "FAILURE", "REVOKED"}
_PATIENCE = 30.0


@dataclass(frozen=True)
class Send:
    """A call that is published.

    Attributes:
        at: When, in seconds.
        takes: For how long its body runs.
        countdown: What it is published with.
    """

    at: float
    takes: float = 1.0
    countdown: float | None = None


SCENES: dict[str, tuple[str, list[Send]]] = {
    "skip": ('on_conflict="skip"', [Send(0, 1.4), Send(0.5)]),
    "raise": ('on_conflict="raise"', [Send(0, 1.4), Send(0.5)]),
    "retry": ('on_conflict="retry", retry_countdown=0.6', [Send(0, 1.2), Send(0.3)]),
    "wait": ('on_conflict="wait"', [Send(0), Send(0.3, 0.8), Send(0.6, 0.8)]),
    "allow": ('on_conflict="allow"', [Send(0, 1.4), Send(0.5)]),
    "buffer_one": (
        'on_conflict="buffer_one"',
        [Send(0, 1.6), Send(0.3), Send(0.6), Send(0.9)],
    ),
    "cancel_running": ('on_conflict="cancel_running"', [Send(0, 4.0), Send(0.7)]),
    "queued": (
        'unique_while="queued", on_conflict="retry"',
        [Send(0, 1.0, countdown=1.0), Send(0.4), Send(1.5, 0.6)],
    ),
    "queued_or_running": (
        'unique_while="queued_or_running"',
        [Send(0, 1.0, countdown=0.8), Send(0.4), Send(1.3), Send(2.4, 0.6)],
    ),
    "unique_for": ("unique_for=1.5", [Send(0, 0.6), Send(1.2, 0.6), Send(2.6, 0.6)]),
    "hold_at_least": (
        "hold_at_least=1",
        [Send(0, 0.15), Send(0.5, 0.15), Send(1.4, 0.15)],
    ),
}


class Watch(threading.Thread):
    """Asks the nodes again and again who has what."""

    def __init__(self, redlock: Redlock, key: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, dict[str, str]]] = []
        self.is_over = threading.Event()
        self._redlock, self._key = redlock, key

    def run(self) -> None:
        """Ask until it is over."""
        claims = Claims(self._redlock)
        while not self.is_over.wait(_LOOK_EVERY):
            holder = self._redlock.inspect(self._key).holder
            claim, cooling = claims.waiting(self._key), claims.cooling(self._key, "")
            now = {
                "lock": holder.task_id if holder else "",
                "claim": claim.holder.task_id if claim else "",
                "cooldown": cooling.holder.task_id if cooling else "",
            }
            self.seen.append((time.time(), now))

    def bars(self, kind: str, start: float) -> list[Bar]:
        """Return when somebody had it."""
        bars: list[Bar] = []
        owner, begin, at = "", 0.0, start
        for at, now in [*self.seen, (self.seen[-1][0], {kind: ""})]:
            if now[kind] != owner:
                if owner:
                    bars.append(Bar(kind, begin - start, at - start))
                owner, begin = now[kind], at
        return bars


def play(task: Any, scene: list[Send], record: Path, redlock: Redlock) -> Any:
    """Publish the calls of a scene, and return what happened, job by job."""
    watch = Watch(redlock, task.name)
    watch.start()
    start = time.time()
    sent: list[tuple[float, Any]] = []
    for send in scene:
        time.sleep(max(0.0, start + send.at - time.time()))
        at = time.time()
        sent.append((at, task.apply_async((send.takes,), countdown=send.countdown)))
    deadline = time.time() + _PATIENCE
    while any(result.state not in _ENDED for _, result in sent):
        if time.time() > deadline:
            raise TimeoutError([result.state for _, result in sent])
        time.sleep(_LOOK_EVERY)
    while watch.seen and any(watch.seen[-1][1].values()):
        time.sleep(_LOOK_EVERY)  # what is left ends by itself
    watch.is_over.set()
    watch.join()
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    return start, sent, lines, watch


def picture(title: str, played: Any) -> str:
    """Draw what happened."""
    start, sent, lines, watch = played
    names: dict[str, str] = {}
    lanes = []
    for number, (at, result) in enumerate(sent):
        letter = chr(ord("A") + number)
        lane = Lane(f"job {letter}")
        lanes.append(lane)
        if result.id in names:
            words = f"not sent: gets the result of {names[result.id]}"
            lane.ends.append((at - start, words))
            continue
        names[result.id] = letter
        mine = [line for line in lines if line["job"] == result.id]
        _tell(lane, at - start, mine, start, result)
    for kind, words in (
        ("claim", "claim"),
        ("lock", "lock"),
        ("cooldown", "cool-down"),
    ):
        bars = watch.bars(kind, start)
        if bars:
            lanes.append(Lane(words, bars, is_thin=True))
    ends = [bar.end for lane in lanes for bar in lane.bars]
    longest = max([*ends, *(at for lane in lanes for at, _ in lane.ends)])
    alt = f"Timeline of {title}, drawn from a real run"
    return draw(title, alt, lanes, max(longest + 0.15, 2.0))


def _tell(
    lane: Lane, published: float, lines: list[Any], start: float, result: Any
) -> None:
    free_since = published
    slot_since, run_since = 0.0, None
    for line in lines:
        at = line["at"] - start
        if line["what"] == "slot":
            if at - free_since > _SHORT:
                lane.bars.append(Bar("queued", free_since, at, "in the queue"))
            slot_since = at
        elif line["what"] == "began":
            if at - slot_since > _SHORT:
                lane.bars.append(Bar("slot", slot_since, at, "waits in its slot"))
            run_since = at
        elif line["what"] == "ended" and run_since is not None:
            cancelled = line["outcome"] == "cancelled"
            kind = "cancelled" if cancelled else "running"
            words = "runs, is told to end" if cancelled else "runs"
            wide = at - run_since > 8 * _SHORT
            lane.bars.append(Bar(kind, run_since, at, words if wide else ""))
        elif line["what"] == "left":
            if run_since is None and at - slot_since > _SHORT:
                lane.bars.append(Bar("slot", slot_since, at, "waits in its slot"))
            free_since = at
    if run_since is None or result.state != "SUCCESS":
        kind = type(result.result).__name__
        lane.ends.append((free_since, f"{result.state}: {kind}"))


def main(wanted: list[str]) -> None:
    """Make the pictures."""
    with tempfile.TemporaryDirectory() as folder, DevNodes(3) as nodes:
        record = Path(folder, "record")
        broker = DevNode()
        broker.start()
        settings = {
            "broker_url": broker.url,
            "result_backend": broker.url,
            "redlock_nodes": list(nodes.urls),
            "redlock_node_timeout": 0.5,
            "worker_prefetch_multiplier": 1,
            "worker_hijack_root_logger": False,
        }
        os.environ["DUPLICATES_SETTINGS"] = json.dumps(settings)
        os.environ["DUPLICATES_RECORD"] = str(record)
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
        from acts import TASKS  # noqa: PLC0415  (it reads the settings)

        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "acts", "worker", "-c", "6"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            redlock = Redlock(nodes.urls, node_timeout=0.5)
            # What comes first is slow: connections, imports. It is not drawn.
            for task in (TASKS["wait"], TASKS["skip"]):
                for result in [task.delay(0.3) for _ in range(6)]:
                    result.get(timeout=_PATIENCE, propagate=False)
            for name in wanted or SCENES:
                record.write_text("")
                title, scene = SCENES[name]
                played = play(TASKS[name], scene, record, redlock)
                file = HERE / "duplicates" / f"{name}.svg"
                file.parent.mkdir(exist_ok=True)
                file.write_text(picture(title, played), "utf-8")
                sys.stdout.write(f"{file.relative_to(HERE.parents[1])}\n")
            redlock.close()
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(_PATIENCE)
            broker.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
