"""The Celery app, as in Celery's guide for Django. Locks need no change here."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("reports")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
