"""The servers of each store, as child processes on loopback.

``postgresql`` is one server. The two others are clusters: ``cluster`` has what they
share, and ``etcd`` and ``zookeeper`` say how their members are started. ``server`` is
what all of them are: the nodes of a `DevStore`.

All of them keep on disk what they have granted, so a server that is killed and started
again forgets nothing.
"""

__all__ = ["cluster", "etcd", "postgresql", "server", "zookeeper"]
