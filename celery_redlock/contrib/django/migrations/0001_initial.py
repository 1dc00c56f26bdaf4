"""The table of the records of calls, and the state of the model without a table."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first migration."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="HeldLock",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "held lock",
                "permissions": (("release_heldlock", "Can release a held lock"),),
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="CallRecord",
            fields=[
                (
                    "id",
                    models.CharField(max_length=64, primary_key=True, serialize=False),
                ),
                ("task", models.CharField(max_length=255)),
                ("task_id", models.CharField(max_length=255)),
                ("key", models.TextField()),
                ("fence", models.BigIntegerField()),
                ("state", models.CharField(max_length=20)),
                ("result", models.TextField()),
                ("content_type", models.CharField(max_length=100)),
                ("content_encoding", models.CharField(max_length=20)),
                ("recorded_at", models.DateTimeField()),
                ("keep_until", models.DateTimeField()),
            ],
            options={
                "verbose_name": "record of a call",
                "verbose_name_plural": "records of calls",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["task_id"], name="redlock_record_task_id"),
                    models.Index(
                        fields=["recorded_at"], name="redlock_record_recorded_at"
                    ),
                    models.Index(
                        fields=["keep_until"], name="redlock_record_keep_until"
                    ),
                ],
            },
        ),
    )
