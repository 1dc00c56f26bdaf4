"""Redlock on a majority of independent Redis masters. Knows Redis, not Celery.

Read in this order: ``ballot`` (how votes are counted), ``scripts`` (what a node
does), ``fanout`` (how all of them are asked at once), ``redlock`` (the
algorithm), ``fence`` and ``guard`` (what plain Redlock lacks), ``renewal``.
"""
