"""Notes that nodes keep besides locks and the calls that want them.

No lock depends on them. ``forced_releases`` says which locks an operator took away, and
why. ``beat_slots`` says which slots of a schedule were sent. ``standbys`` lists the
standbys of an election. They do not depend on each other: read them in any order.
"""

__all__ = [
    "beat_slots",
    "forced_releases",
    "standbys",
]
