"""Metrics of the app, for the tests that say where they are served."""

from __future__ import annotations

import os

from celery_redlock import metrics
from tests.beat.project.app import app
from tests.worker.harness.scraped import PORT

metrics.install(app, port=int(os.environ[PORT]), host="127.0.0.1")
