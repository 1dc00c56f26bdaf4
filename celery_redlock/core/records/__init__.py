"""Records that nodes keep besides locks. No safety rests on them.

``claims`` says which job of a call waits in the queue or has just succeeded.
``successors`` says which refused call runs next. ``cancel_requests`` asks a holder to
end. ``beat_slots`` says which slots of a schedule were sent. ``standbys`` lists the
standbys of an election. They do not depend on each other: read them in any order.
"""

__all__ = ["beat_slots", "cancel_requests", "claims", "standbys", "successors"]
