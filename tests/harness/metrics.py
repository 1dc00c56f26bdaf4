"""The metrics of a process, read as Prometheus reads them."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.waiting import until

PORT = "PROJECT_METRICS_PORT"  # the variable with the port of a process


class Scraped:
    """The metrics that a process of this machine serves on a port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/metrics"

    def is_open(self) -> bool:
        """Tell whether the process serves metrics."""
        try:
            self.samples()
        except OSError:
            return False
        return True

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return all samples of one scrape, by name and labels."""
        with urllib.request.urlopen(self.url, timeout=10) as response:  # noqa: S310  (ours)
            text = response.read().decode()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """Return one sample of a new scrape; 0 without one."""
        return self.samples().get((name, frozenset(labels.items())), 0.0)

    def has(self, name: str) -> bool:
        """Tell whether a new scrape has samples of this name."""
        return any(name == found for found, _ in self.samples())

    def until_at_least(self, least: float, name: str, **labels: str) -> float:
        """Scrape until a sample has reached this value, and return it."""

        def value() -> float:
            now = self.value(name, **labels)
            return now if now >= least else 0.0

        return until(value, what=f"{name}{labels} >= {least:g}")
