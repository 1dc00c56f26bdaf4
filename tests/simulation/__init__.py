"""Deterministic simulation: the real core on a simulated network and clocks.

::

    plan ──► history ──► witness ──► findings ──► minimise ──► a report to read
    (seed)   │
             ├─ world      virtual time, processes, threads (greenlets), clocks
             ├─ sync       locks and queues between the threads of a process
             ├─ network    connections that delay, break and reorder
             ├─ server     nodes (`testing.MemoryNode`) that crash, hang, forget
             ├─ clients    the core, unchanged, doing what people do with it
             ├─ faults     what goes wrong
             └─ seams      where all this is put under the core

``campaign`` plays many on all processors, ``soak`` until it is stopped, and
``plants`` are bugs that are planted to see whether they are found. Not simulated:
TLS, forks, asynchronous exceptions between two operations, a machine that stands
still with its monotonic clock, and an operator who deletes keys.
"""
