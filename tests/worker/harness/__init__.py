"""Real Celery workers and redis-servers as local processes, for tests.

``processes`` starts and kills them behind the face of pytest-celery's
containers, ``stage`` is what task bodies record and wait for, ``nodes`` looks at
the lock nodes from outside, ``deployment`` puts it together.
"""
