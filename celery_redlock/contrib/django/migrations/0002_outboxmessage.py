"""The table of the outbox."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """The second migration."""

    dependencies = (("celery_redlock", "0001_initial"),)
    operations = (
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                (
                    "id",
                    models.CharField(max_length=255, primary_key=True, serialize=False),
                ),
                ("task", models.CharField(max_length=255)),
                ("body", models.TextField()),
                ("content_type", models.CharField(max_length=100)),
                ("content_encoding", models.CharField(max_length=20)),
                ("written_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "message in the outbox",
                "verbose_name_plural": "messages in the outbox",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        fields=["written_at"], name="redlock_message_written_at"
                    ),
                ],
            },
        ),
    )
