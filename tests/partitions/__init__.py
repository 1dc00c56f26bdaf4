"""Partitions made by the kernel: ``python -m tests.partitions --seconds 600 --seed 1``.

Five redis-servers, four workers and a store run in network namespaces of their own, on
one bridge. A seed chooses faults of links, processes and clocks. The workers take,
renew and release locks, and write to the store under a fence. They record their
operations in the form of Jepsen, and the operations are judged at the end::

    worker ──► link ──► bridge ──► link ──► five nodes
      │                    └──────────────► store
      └──► history ──► linearizability ──► verdicts ──► report

``session``          one run from begin to end
``network``          namespaces, links and their faults: root only
``site``             all processes: start, repair, stop
``worker``           a process whose threads use locks and the store
``store``            a register and sets with a fence check, over TCP
``faults``           the faults, their targets and their durations
``history``          operations: recorded, read, and written in Jepsen's form
``linearizability``  has Spin look for an order of the operations that explains them
``verdicts``         the counts that must be zero, and the others

`tests.torture` kills processes, and its nodes lose their memory. Here no process is
killed, and no node forgets. So a fence may never repeat or decrease, also when clocks
are stepped.

Spin is the checker: ``linearizability.pml`` is a page long, and the histories are its
data. Without Spin nothing is judged, and so nothing is run.

The faults touch these namespaces and nothing else: they have no link to the machine.
The machine's kernel may lack ``netem``, as the one on which this was written does. So
a lossy link drops packets at random in nftables, and a slow or reordered link sends
all or some of its packets through a slow class of ``htb``.

The seed chooses the faults and the operations. The timing of the machine differs from
run to run, so a seed does not repeat a failure. ``--keep FOLDER`` keeps the history
and all logs.
"""
