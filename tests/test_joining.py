"""The pages for contributors name what exists."""

import re
from pathlib import Path

import pytest
import yaml

from celery_redlock.devnodes import STORES
from tests.harness.programs import end_of

ROOT = Path(__file__).parents[1]
CALLERS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/contributing/releasing.md",
    ".github/PULL_REQUEST_TEMPLATE.md",
    ".github/workflows/release.yml",
    ".github/workflows/tests.yml",
    ".pre-commit-config.yaml",
)


@pytest.mark.parametrize("page", CALLERS)
def test_joining_make_targets_exist(page: str) -> None:
    """Each named target is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"(?:`|entry: |run: |^)make ([a-z-]+)", text, re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("command", ["demo ARGS=--store={}", "example STORE={}"])
def test_make_installs_the_driver_of_the_store(
    command: str, store: str, tmp_path: Path
) -> None:
    """The new environment of the demo and of the example has what the store needs."""
    target, _, setting = command.format(store).partition(" ")
    line = ("make", "--dry-run", target, setting, f"VENV={tmp_path / 'venv'}")
    assert f"--editable '.[{store}]'" in end_of(*line, cwd=ROOT).stdout


def test_workflows_can_be_read_and_have_limits() -> None:
    """Each job has a system and its rights are named; each step does something."""
    folder = ROOT / ".github" / "workflows"
    for path in sorted(folder.glob("*.yml")):
        workflow = yaml.safe_load(path.read_text("utf-8"))
        assert "permissions" in workflow, path.name
        for name, job in workflow["jobs"].items():
            assert job["runs-on"] == "ubuntu-latest", name
            assert all("run" in step or "uses" in step for step in job["steps"]), name
