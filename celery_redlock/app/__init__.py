"""The parts that all lock tasks of one app share in one process.

Read `runtime` first: settings, lock service, watchdog, dispatcher of signals and
resolved options of an app, found by ``runtime_of(app)``. The others stand alone:

* `worker_hooks` checks settings, options and nodes when a worker starts.
* `observer` is the base class of metrics and tracing: it receives an app's signals.
* `masking` keeps the nodes' passwords out of what Celery prints.
"""

from __future__ import annotations

__all__ = ["masking", "observer", "runtime", "worker_hooks"]
