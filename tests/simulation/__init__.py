"""Deterministic simulation: the real core on a simulated network and simulated clocks.

::

    seed ──► planner ──► plan ──► history ──► findings ──► minimise ──► report
                                     │
             ┌───────────────────────┘
             ├─ world           virtual time, processes, threads (greenlets), clocks
             ├─ network         connections that delay, break and reorder messages
             ├─ server          nodes (`testing.MemoryNode`) that crash, hang and forget
             ├─ clients         processes that run the unchanged core
             ├─ operators       processes that run init and reconfigure
             ├─ faults          carries out the faults of the plan
             ├─ patches         replaces threads, sockets and randomness under the core
             ├─ observed_lease  leases that report each change
             ├─ observed_guard  restart guards that report what they do without a node
             └─ oracles         the rules that no history may break

``soak`` plays many histories on all processors, also until it is stopped.
``planted_bugs`` are bugs that the simulator must find. Clients wait for a lock as in
production: in the wait queue, with a subscription on each node. Not simulated:
TLS, forks, asynchronous exceptions between two operations, a suspended machine whose
monotonic clock stops, and an operator who deletes keys.
"""
