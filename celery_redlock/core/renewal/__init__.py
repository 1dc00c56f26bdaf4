"""The renewal of all leases of a process, by one thread.

Read ``watchdog`` first: what holders call, and what the thread does. ``schedule`` has
its two data structures: the watches in the order in which they are due, and the queue
in which holders leave new ones.
"""

__all__ = ["watchdog"]
