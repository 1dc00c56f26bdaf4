"""Until when a process has taken a message of the outbox, to publish it."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """The fourth migration."""

    dependencies = (("celery_redlock", "0003_redlock_keys"),)
    operations = (
        migrations.AddField(
            model_name="outboxmessage",
            name="taken_until",
            field=models.DateTimeField(null=True),
        ),
    )
