"""A play in one act: five Redis nodes, two workers, a storm of duplicates, two kills.

Run it with ``python -m celery_redlock.demo``. Everything in it is real: servers,
workers and kills. What the summary says is computed from what the bodies of the
tasks wrote down while they ran, in a file outside of the lock's path.
"""
