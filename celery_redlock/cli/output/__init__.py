"""The parts that all commands share: running a command, and formatting results.

``session`` runs a command and prints for operators or, with ``--json``, for programs;
``format`` makes tables, and sentences about locks and nodes; ``live`` redraws a screen
until Ctrl-C.
"""

__all__ = ["format", "live", "session"]
