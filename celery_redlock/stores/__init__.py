"""Stores: one database that carries out the scripts, in place of several Redis nodes.

A store decides by one log or one transaction. So it is the only voter of a deployment,
and what it has granted it does not forget. Requests to a store are carried out in this
process, by `wire.store_connection`. The rest of the package knows no more of it.

Read in this order:

1.  ``needs``: what a script reads and changes, so that a store can lock and load it.
2.  ``keyspace``: the keys of one transaction: loaded, changed, and written at its end.
3.  ``commands``: runs scripts and commands of Redis on such a keyspace.
4.  ``connection``: what a store is for the rest of the package, and which there are.
5.  ``postgresql``: PostgreSQL as a store. Its parts are ``postgresql_url`` (where it
    is), ``postgresql_table``, ``postgresql_statements`` and ``postgresql_memory`` (what
    it need not read).
6.  ``compare_and_swap``: for stores that compare what they have read: ``etcd``, with
    ``etcd_member``, which speaks HTTP, and ``zookeeper``. ``server_clock`` tells them
    the time of the servers, and PostgreSQL.

A new store is one file: it loads and writes the entries of a `StoreKeyspace` in one
transaction, and tells listeners of a release. Its scheme is entered in
``connection.STORES``.
"""

__all__ = [
    "connection",
    "postgresql_table",
]
