"""The record: every bug of the lock that was found, and the tool that finds it.

::

    bugs ──────┐
    rules ─────┼──► ways ──► a bug comes back ──► a tool finds it ──► figures.json
    counts ────┘                                                          │
                        docs/explanation/record.md  ◄── page ◄────────────┘

``bugs``     the bugs, with what brings each of them back, or its regression test
``rules``    the rules of the protocol, and which tools notice that a rule is gone
``ways``     the ways in which a bug comes back: planted, or in a model
``counts``   figures about all tools: states searched, histories played
``figures``  the results of the last run, in ``figures.json``
``page``     the page ``docs/explanation/record.md``

``python -m evidence`` runs all of it. ``python -m evidence NAME`` brings one bug back.
A new tool is a new class in ``ways``, or a new function in ``counts``.
"""
