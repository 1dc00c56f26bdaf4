"""Torture with real processes: ``python -m tests.torture --seconds 600 --seed 1``.

Five redis-servers behind a proxy, a broker, a result backend, four workers and two
producers on this machine. One seed chooses what is killed, frozen, cut off and
revoked. Everybody writes one journal, outside of the locks' path, and at the end
the journal is judged::

    producer ──► broker ──► worker ──► proxy ──► five nodes
        │                     │          │          │
        └───── journal ◄──────┴── faults ┴──────────┘
                  └────► histories ──► verdicts ──► report

``session``    one torture from beginning to end
``names``      what the jobs work on
``broker``     Redis or RabbitMQ, with its memory kept over a crash
``journal``    one line per event, the machine's monotonic clock
``ledger``     SQLite: fenced cells, and every write that was accepted
``project``    the app and its jobs; runs in the workers
``producer``   publishes jobs; a process
``proxy``      lines to the nodes that can be cut, deafened and slowed; a process
``site``       starts all of it, heals it, stops it
``faults``     what goes wrong, when and for how long
``histories``  who ran when, and until when its lease was valid
``verdicts``   what must be zero, what is counted apart
``report``     a table for people, JSON for machines

The seed chooses the jobs and the faults, their targets and their lengths. What the
machine makes of them differs from run to run, so a seed does not repeat a failure;
``--keep FOLDER`` keeps the journal and all logs.
"""
