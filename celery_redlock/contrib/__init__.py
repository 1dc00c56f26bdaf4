"""Parts for other packages. Each is a leaf: it needs its extra, and nothing needs it.

``django`` and ``sqlalchemy`` hold the storage half of a fence: a column, and
writes that are refused once a later holder of the lock has written.
"""
