"""The nodes of a deployment: which there are, and which may vote.

Read in this order:

1.  ``view``: the members, and their epochs. ``configuration``: the settings on which
    all clients must agree.
2.  ``restart_guard``: a node that has lost its memory does not vote at first.
3.  ``deployment``: the check of all nodes, and the start of new ones.
"""

__all__ = [
    "deployment",
    "restart_guard",
    "view",
]
