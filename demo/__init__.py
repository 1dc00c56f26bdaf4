"""Five Redis nodes, two workers, many duplicate calls, and two kills.

Run it with ``python -m demo``, or ``make demo``. ``--store`` runs a store in place of
the nodes: ``postgresql``, ``etcd`` or ``zookeeper``. Servers, workers and kills are
real. The summary comes from a journal that the task bodies write while they run. The
locks play no part in it.

``tasks``      the app, its two tasks, and the records of their bodies
``journal``    the runs in these records, and overlaps of runs
``processes``  the nodes, the broker and the workers
``screen``     the tables on the terminal
``__main__``   the sequence of events, and the summary
"""
