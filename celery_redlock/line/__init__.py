"""Which calls want a key, in which order, and which one is next.

No safety rests on it: the lock alone decides. ``claims`` says which job of a call waits
in the queue or has just succeeded. ``successors`` says which refused call runs next.
``backlog`` has the calls that come back in their turn, and their numbers (in_order).
``cancel_requests`` asks a holder to end. ``key_watch`` tells calls that wait outside of
a thread that a lock is free. They do not depend on each other: read them in any order.
"""

RESEND_FOR = 3600.0  # seconds: as long as entries last as a rule

__all__ = [
    "backlog",
    "cancel_requests",
    "claims",
    "key_watch",
    "successors",
]
