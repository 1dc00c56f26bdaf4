"""Partitions made by the kernel: ``python -m tests.partitions --seconds 600 --seed 1``.

This is `tests.torture` with each worker in a network namespace of its own, and with
links that the kernel breaks (``tests/torture/network.py``). No node is killed there,
and none forgets. So a fence may never repeat or decrease, also when clocks of nodes are
stepped. Spin judges the histories as well (``tests/torture/linearizability.py``).
Without Spin nothing is judged, and so nothing is run.

The faults touch these namespaces and nothing else: they have no link to the machine.
"""
