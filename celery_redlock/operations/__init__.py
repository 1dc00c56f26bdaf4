"""Operations on a deployment: list and release locks, find faults, change nodes.

Each module takes a ``Redlock`` and talks to all its nodes, as a rule through the
blocking client of ``wire.client``. Nothing here prints or asks: ``cli``, the
page of ``web`` and the Django admin do that.

Read in this order: ``scan`` (what the nodes store), ``release`` (the question before a
lock is released, the release, and what it has done), ``kill_holder`` (end the process
of its holder),
``inspect`` (which nodes vote, and in which state they are), ``acl`` (which permissions
our user needs), ``doctor`` (judge all that), ``reconfigure`` (change the nodes),
``words`` (the words for all these).
"""

__all__ = [
    "acl",
    "doctor",
    "inspect",
    "kill_holder",
    "reconfigure",
    "release",
    "scan",
    "words",
]
