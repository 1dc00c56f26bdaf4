"""Torture with real processes: ``python -m tests.torture --seconds 600 --seed 1``.

Five redis-servers behind proxies, a broker, a result backend, four workers and two
producers run on this machine. A seed chooses the processes and jobs that are killed,
frozen, cut off and revoked. All processes write one journal, and the locks play no part
in it. At the end, the verdicts come from this journal::

    producer ──► broker ──► worker ──► proxies ──► five nodes
        │                     │           │            │
        └───── journal ◄──────┴── faults ─┴────────────┘
                  └────► histories ──► verdicts ──► report

``session``    one torture from begin to end
``names``      the names that all processes share
``broker``     Redis or RabbitMQ, which keep their messages over a crash
``ledger``     SQLite: fenced cells, and every write that was accepted
``project``    the app and its jobs; runs in the workers
``producer``   publishes jobs; a process
``site``       all processes: start, repair, stop
``faults``     the faults, their targets and their durations
``histories``  the runs in the journal, and the validity of their leases
``verdicts``   the counts that must be zero, and the others
``report``     a table for the terminal, JSON for programs

The seed chooses the jobs and the faults, their targets and their durations. The timing
of the machine differs from run to run, so a seed does not repeat a failure.
``--keep FOLDER`` keeps the journal and all logs.
"""
