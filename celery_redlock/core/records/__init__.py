"""Records that nodes keep besides locks. No safety rests on them.

``claims`` says which job of a call waits in the queue or has just succeeded.
``successors`` says which refused call runs next. ``backlog`` says how many refused
calls come back before one of them. ``cancel_requests`` asks a holder to end.
``forced_releases`` says which locks an operator took away, and why. ``beat_slots`` says
which slots of a schedule were sent. ``standbys`` lists the standbys of an election.
They do not depend on each other: read them in any order.
"""

__all__ = [
    "backlog",
    "beat_slots",
    "cancel_requests",
    "claims",
    "forced_releases",
    "standbys",
    "successors",
]
