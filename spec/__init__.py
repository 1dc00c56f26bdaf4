"""The specification of the lock in Promela, and a program that has Spin check it.

Read ``common.pml`` first, then ``lock.pml``, ``fence.pml``, ``keys.pml`` and
``reconfiguration.pml``. The page for readers without Promela is
docs/explanation/specification.md.
"""
