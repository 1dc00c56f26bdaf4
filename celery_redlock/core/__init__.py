"""Redlock on a majority of independent Redis masters. Knows Redis, not Celery.

Read in this order:

1.  ``redlock``: the lock service, and the algorithm in one picture. ``steps``,
    ``event_loop``: how threads and coroutines carry it out.
2.  ``lease``: the result of an acquire, and the holder as the nodes store it.
3.  ``quorum``: how votes are counted. ``failure``: the error for a lost vote.
4.  ``fence``, ``restart_guard``: two guarantees that plain Redlock lacks.
    ``view``: the members of a deployment, and its epochs. ``configuration``: the
    settings on which all clients must agree.
5.  ``extension``: one renewal. ``renewal``: the thread that renews all leases.
    ``forced_release``: what a holder learns of an operator's release.
6.  ``wait_queue``: waiting for a lock that another client holds; ``key_watch``: the
    same for calls that wait outside of a thread. ``limits``, ``permits``: several
    holders of a key, and so many starts in a period.
7.  ``scripts``: what a node does, in Lua. ``keys``: the names of all keys there.
8.  ``transport``: requests, connections, and one conversation with all nodes.
    ``resp``: from commands to bytes and from bytes to replies. ``selector``: waits for
    sockets, in a thread or a greenlet. ``process``: what a fork must not copy, and how
    threads start and end. ``stores``: a database in place of the nodes.
9.  ``records``: what nodes remember besides locks.
10. ``deployment``: the check of all nodes, and the start of new ones. ``timing``: the
    durations of a deployment. ``clock``, ``backoff``, ``callbacks``, ``log_fields``,
    ``log_limit``, ``signature``, ``spelling``: small helpers. ``text``, ``glob``: what
    is checked of a text that comes from outside, and patterns of keys. ``secret``: what
    is shown of a URL with a password.
"""

__all__ = [
    "backoff",
    "callbacks",
    "clock",
    "deployment",
    "event_loop",
    "failure",
    "forced_release",
    "glob",
    "key_watch",
    "keys",
    "lease",
    "limits",
    "log_fields",
    "log_limit",
    "permits",
    "process",
    "quorum",
    "records",
    "redlock",
    "renewal",
    "resp",
    "restart_guard",
    "scripts",
    "secret",
    "selector",
    "signature",
    "spelling",
    "steps",
    "stores",
    "text",
    "timing",
    "transport",
    "view",
]
