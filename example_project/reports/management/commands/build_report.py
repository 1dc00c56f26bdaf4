"""``manage.py build_report 3``: build a report under the lock of the task."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from celery_redlock import LockHeld, LockUnavailable
from live.journal import recorded
from reports.tasks import build_report, write_report

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    """Build a report in this process, unless a worker builds it."""

    help = "Build a report in this process, under the lock of the task."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the number of the customer."""
        parser.add_argument("customer", type=int, help="The customer's number.")

    def handle(self, **options: Any) -> None:
        """Build the report, or name the task that builds it."""
        customer = options["customer"]
        try:
            with build_report.lock(customer), recorded("manage.py") as lease:
                self.stdout.write(f"Holding {lease.key}, fence {lease.fence} ...")
                report = write_report(customer, lease)
        except LockHeld as held:
            began = held.holder.started if held.holder else 0
            since = datetime.fromtimestamp(began, tz=timezone.utc)
            raise CommandError(
                f"The report is being built by {held.holder} since "
                f"{since:%H:%M:%S} UTC. Nothing was done."
            ) from held
        except LockUnavailable as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Wrote report {report}.")
