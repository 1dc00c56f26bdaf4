"""Prints a script as a node gets it: ``python -m celery_redlock.scripts sync``."""

from __future__ import annotations

import sys

from celery_redlock.scripts import load

if __name__ == "__main__":
    sys.stdout.write(load(sys.argv[1]).source)
