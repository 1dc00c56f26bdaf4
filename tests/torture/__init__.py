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
``broker``     Redis or RabbitMQ, which keep their messages over a crash
``ledger``     SQLite: fenced cells, and every write that was accepted
``effects``    PostgreSQL: a row for each job that has effects there
``project``    the app and its jobs; runs in the workers
``producer``   publishes jobs; a process
``site``       all processes: start, repair, stop
``network``    namespaces, links and their faults: root only
``faults``     the faults, their targets and their durations
``links``      the same for the links of a network
``histories``  the runs in the journal, and the validity of their leases
``verdicts``   the counts that must be zero, and the others
``report``     a table for the terminal, JSON for programs

``linearizability`` has Spin look for an order of all operations on a lock or a cell
that explains them. ``linearizability.pml`` is a page long, and the histories are its
data.

`tests.partitions` is the same on a ``network``, which takes the place of the proxies.

The seed chooses the jobs and the faults, their targets and their durations. The timing
of the machine differs from run to run, so a seed does not repeat a failure.
``--keep FOLDER`` keeps the journal and all logs.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.harness.journal import Journal

FOLDER = "TORTURE_FOLDER"  # the variable with the folder of the torture
SETTINGS = "TORTURE_SETTINGS"  # the variable with the settings of the app
PLANT = "TORTURE_PLANT"  # the variable with the bug that workers get, if any
COUNTERS = [f"counter-{number}" for number in range(4)]
CELLS = [f"cell-{number}" for number in range(3)]
SETS = [f"set-{number}" for number in range(3)]
EFFECTS = {"once", "often"}  # the kinds of jobs with effects in a database
LONG = 12.0  # seconds of a long one of them


def journal_in(folder: Path | str) -> Journal:
    """Return the journal of the torture in this folder."""
    return Journal(os.path.join(folder, "journal.jsonl"))  # noqa: PTH118  (str or Path)
