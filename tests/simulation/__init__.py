"""Deterministic simulation: the real core on a simulated network and clocks.

::

    seed ──► planning ──► plan ──► history ──► findings ──► minimise ──► a report
             (mishaps)             │
             ┌─────────────────────┘
             ├─ witness    what must not happen (observed, account)
             ├─ world      virtual time, processes, threads (greenlets), clocks
             ├─ sync       locks and queues between the threads of a process
             ├─ network    connections that delay, break and reorder
             ├─ server     nodes (`testing.MemoryNode`) that crash, hang, forget; who
             │             has subscribed is told of releases
             ├─ clients    the core, unchanged, doing what people do with it
             ├─ faults     what goes wrong
             ├─ handover   how long a lock lies free while somebody waits for it
             └─ seams      where all this is put under the core

``campaign`` plays many on all processors, ``soak`` until it is stopped, and
``plants`` are bugs that are planted to see whether they are found. Who waits for a
lock does so as in production: in line, with a subscription on each node. Not simulated:
TLS, forks, asynchronous exceptions between two operations, a machine that stands
still with its monotonic clock, and an operator who deletes keys.
"""
