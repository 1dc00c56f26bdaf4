"""Metrics of the app, for the tests that say where they are served."""

from __future__ import annotations

import os

from celery_redlock import metrics
from tests.worker.harness.scraped import PORT
from tests.worker.project.app import app

metrics.install(app, port=int(os.environ[PORT]), host="127.0.0.1")
