"""The parts that all lock tasks of one app share in one process.

Read `runtime` first: settings, lock service, watchdog, dispatcher of signals and
resolved options of an app, found by ``runtime_of(app)``. The others stand alone:

* `worker_hooks` checks settings, options and nodes when a worker starts.
* `observer` is the base class of metrics and tracing: it receives an app's signals.
* `outage_log` logs that too few nodes vote: once a minute, and when it is over.
* `refusal_log` warns of a worker whose processes only refuse calls or wait with them;
  `refusal_step` is the part of it that Celery's main process calls.
* `confirmed` publishes what must not be lost: it returns when the broker has it.
* `early_start` starts refused calls of a worker as soon as their lock is free.
* `autoretry` retries a call after an error outside of its body, as Celery does inside.
* `masking` keeps the nodes' passwords out of what Celery prints.
"""

from __future__ import annotations

__all__ = [
    "autoretry",
    "confirmed",
    "early_start",
    "masking",
    "observer",
    "outage_log",
    "refusal_log",
    "refusal_step",
    "runtime",
    "worker_hooks",
]
