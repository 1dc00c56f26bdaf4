"""The app with metrics, on the port that the test sets."""

from __future__ import annotations

import os

from celery_redlock import metrics
from tests.beat.project.app import app
from tests.harness.metrics import PORT

metrics.install(app, port=int(os.environ[PORT]), host="127.0.0.1")
