"""Requests to nodes: how they are built, sent and answered.

Read in this order:

1.  ``requests``: one script call to every node, and the ballot of the replies.
    ``quorum``: how votes are counted. ``permit_reply``: what nodes tell of permits.
2.  ``broadcast``: the requests of all callers; stops at a verdict or the deadline.
3.  ``node``: one node's ordered conversation. ``node_log``: its lines in the log.
    ``pending_releases``: the releases that it gets when it reconnects.
4.  ``connector``: makes connections in the background. ``connection``: one open
    connection, and a check of the server. ``store_connection``: the same to a store.
    ``url``: the address of a node.
5.  ``pubsub``: listens for the wake-ups of waiters.
6.  ``client``: a blocking conversation with one node, for operators' commands.
7.  ``steps``, ``event_loop``: how threads and coroutines carry an algorithm out.
"""

__all__ = [
    "broadcast",
    "client",
    "connector",
    "event_loop",
    "node",
    "pending_releases",
    "permit_reply",
    "pubsub",
    "quorum",
    "requests",
    "steps",
    "url",
]
