"""Metrics of an app, in a registry of the test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from celery_redlock import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery


@pytest.fixture
def registry() -> CollectorRegistry:
    """Give a place for the metrics of this test."""
    return CollectorRegistry()


@pytest.fixture
def installed(app: Celery, registry: CollectorRegistry) -> Iterator[metrics.Metrics]:
    """Count the locks of the app."""
    installed = metrics.install(app, registry=registry)
    yield installed
    installed.uninstall()
