"""The Celery app, as Celery's guide for Django has it: locks need nothing here."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("reports")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
