"""One call of a task: published, admitted under its lock, run, released.

Read the files in the order of a call's life::

    publisher           main process of a worker      process of the worker
    ─────────           ────────────────────────      ─────────────────────
    singleton_task      request ────────────────────► singleton_task
      .apply_async        mints a base (header)         .__call__
         │                  ▲                              │
    publishing              │                            call        key, header,
      claims the call       │                              │         options
         │                  │                          execution     acquires the lock
         └─────► broker ────┘                              │
                                                         body
                                                           │
                                                        release
                                                           │
                                                        result

* `singleton_task` is the base class of tasks, and `decorator` makes a function one.
* `call` is what is known of a call before its body runs: the key that it locks, the
  `header` of its message, the runtime of its app, the options of its task.
* `execution` is the call from then to its end: it tries for the lock, is refused or
  runs the body, loses the lock or releases it.
* `line_entry` has the other entries of the call on the nodes, which end when it begins.
* `decided` performs what a policy says about a call that is refused or has lost its
  lock: it is skipped, fails, waits, is republished, or runs without the lock. `ends`
  has the ways in which a copy of a call ends without a run.
* `interrupt` raises an error in a running body from outside.
* `tracer` lets the exception of a refused call pass Celery's tracer at no more than the
  cost of a run, with `trace_info`, which only a worker imports.

Beside this path:

* `publishing` claims a call before it is sent, for tasks with ``unique_while`` or
  ``unique_for``, and releases the claim when the body begins.
* `message` keeps what was really sent of a call, after base classes and signals.
* `announcement` tells the nodes of a call that is published, for policies that order
  the calls: after it is sent, or before with ``in_order``.
* `awaitables` refuses bodies whose work begins after their lock has ended.
* `request` releases the lock of a process that was killed.
* ``effects.exactly_once`` runs the body in a transaction with a record of the call, for
  tasks with ``exactly_once_in``.
* `results` asks the result backend whether a call has ended.
* `explain` says what would happen to a call, and changes nothing.
"""

from __future__ import annotations

__all__ = [
    "decorator",
    "explain",
    "header",
    "publishing",
    "singleton_task",
]
