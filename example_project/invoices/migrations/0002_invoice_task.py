"""The task of an invoice, and whether its worker is killed."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """The second migration."""

    dependencies = [("invoices", "0001_initial")]
    operations = [
        migrations.AddField(
            "invoice", "task_id", models.CharField(default="", max_length=255)
        ),
        migrations.AddField(
            "invoice", "kills_worker", models.BooleanField(default=False)
        ),
    ]
