"""Build the package as for a release, and check what was built and what it installs.

``noxfile.py`` uses it for its environments (``make check-package``), and
``test_first_steps.py`` for the steps of a reader. Each step has a time limit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
_SHOWN = 6000  # characters of the output of a failed command
# Tests that take seconds and need no extra.
FAST = (
    *("tests/unit/lock", "tests/unit/tasks", "tests/unit/policies"),
    *("tests/unit/options", "tests/unit/locking", "tests/unit/testing"),
)
# These need an extra; the last one needs hiredis only.
WITH_HIREDIS = ("lock/test_resp.py",)
NOT = (
    *("options/test_arguments.py", "policies/test_one_file.py"),
    "policies/test_cancel_running.py",
    *("tasks/test_metrics.py", "tasks/test_path.py", "tasks/test_tracing.py"),
)
DJANGO = (
    *("tests/contrib/test_admin.py", "tests/contrib/test_django_checks.py"),
    *("tests/contrib/test_django_claims.py", "tests/contrib/test_django_fences.py"),
    *("tests/contrib/test_exactly_once.py", "tests/contrib/test_outbox.py"),
)
# Celery, kombu and redis-py do other things there in other versions.
WITH_WORKERS = ("tests/beat", "tests/contrib", "tests/nodes", "tests/worker")
# What a server must do, beside what the contract says.
ON_A_SERVER = (
    *("tests/contract", "tests/nodes/test_exclusion.py"),
    *("tests/nodes/test_misfits.py", "tests/nodes/test_restart_guard.py"),
    *("tests/nodes/test_server_settings.py", "tests/cli/test_doctor.py"),
)
# Celery's own tests, and what they need: see celery_suite.py.
CELERY_TESTS = ("t/integration/test_tasks.py", "t/integration/test_canvas.py")
CELERY_NEEDS = (
    *("pytest-click", "pytest-order", "pytest-rerunfailures", "pytest-subtests"),
    "pytest-timeout",
)
NEEDS = (
    *("django", "hypothesis", "lupa>=2.8", "psutil", "psycopg[binary]", "pydantic"),
    *("pytest>=9", "pytest-timeout", "pytest-xdist", "trio"),
)
NEEDED = (
    *("README.md", "LICENSE", "CHANGELOG.md", "Makefile", "noxfile.py"),
    *("CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
    "pyproject.toml",
)
FOLDERS = (
    *("celery_redlock/", "demo/", "deploy/", "docs/", "example_project/"),
    *("tests/", "benchmarks/"),
)
RELATIVE = re.compile(r"""\]\((?!https?:|\#)[^)]+\)|(?:src|srcset)="(?!https?:)[^"]+""")
# Without PYTHONPATH, which would lead to a checkout.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

# Run in the new environment. Prints the installed packages that no package requires.
CLOSURE = """
import importlib.metadata as metadata, re
from pip._vendor.packaging.requirements import Requirement
norm = lambda name: re.sub("[-_.]+", "-", name).lower()
seen, todo = set(), [(n, "") for n in ("celery", "kombu", "packaging", "redis")]
while todo:
    name, extra = todo.pop()
    if (norm(name), extra) in seen:
        continue
    seen.add((norm(name), extra))
    try:
        requires = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        continue
    for text in requires:
        need = Requirement(text)
        if need.marker is None or need.marker.evaluate({"extra": extra}):
            todo += [(need.name, ""), *((need.name, more) for more in need.extras)]
known = {name for name, _ in seen}
known |= {"celery-redlock", "pip", "setuptools", "wheel"}
print(*sorted({norm(d.name) for d in metadata.distributions()} - known))
"""

HOME = """
import celery_redlock
print(celery_redlock.__file__)
"""


class Failed(Exception):  # noqa: N818  (it names an outcome)
    """A step failed. The message has its output."""


@dataclass(frozen=True)
class Built:
    """The built files.

    Attributes:
        wheel: The wheel.
        suite: The folder with the sdist's contents, without the package.
    """

    wheel: Path
    suite: Path


def run(*command: str | Path, cwd: Path | None = None, seconds: float = 180) -> str:
    """Run a command and return its output.

    Raises:
        Failed: The command failed or did not end in time.
    """
    try:
        done = subprocess.run(  # noqa: S603  (our own commands)
            [str(word) for word in command],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
            env=ENVIRONMENT,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or ""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        raise Failed(f"{command} did not end within {seconds:g} s\n{text}") from None
    if done.returncode:
        end = done.stdout[-_SHOWN:]
        raise Failed(f"{command} returned {done.returncode}\n{end}")
    return done.stdout


def pythons() -> dict[str, Path]:
    """Return the interpreters of this machine that can make virtual environments."""
    found: dict[str, Path] = {}
    for version in PYTHONS:
        installed = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
        on_path = shutil.which(f"python{version}")
        for candidate in (on_path, *sorted(installed), sys.executable):
            if candidate and version not in found and is_python(candidate, version):
                found[version] = Path(candidate)
    return found


def is_python(candidate: str | Path, version: str) -> bool:
    """Tell whether this is an interpreter of this version with venv."""
    program = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    try:
        return run(candidate, "-c", program, seconds=20).strip() == version
    except (Failed, OSError):
        return False  # such as a shim for a version that is not installed


def make_venv(python: str | Path, folder: Path) -> Path:
    """Make an environment and return its interpreter."""
    run(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def pip(python: Path, *words: str | Path) -> None:
    """Install packages into the environment of an interpreter."""
    quiet = ("--quiet", "--disable-pip-version-check")
    run(python, "-m", "pip", *quiet, "install", "--no-compile", *words, seconds=240)


# -- Building ----------------------------------------------------------------------


def build(folder: Path) -> Built:
    """Build sdist and wheel, and check their contents."""
    python = make_venv(sys.executable, folder / "build")
    pip(python, "build")
    run(python, "-m", "build", "--outdir", folder / "dist", ROOT)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    check_sdist(sdist)
    check_wheel(wheel)
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)  # noqa: S202  (this program made it)
    suite = folder / sdist.name.removesuffix(".tar.gz")
    shutil.rmtree(suite / "celery_redlock")
    return Built(wheel, suite)


def check_sdist(sdist: Path) -> None:
    """Check that the sdist is complete, and has no stray files."""
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    here = [folder for folder in FOLDERS if (ROOT / folder).is_dir()]
    missing = [name for name in NEEDED if name not in names]
    missing += [f for f in here if not any(name.startswith(f) for name in names)]
    if missing:
        raise Failed(f"{sdist.name} lacks {missing}")
    refuse(sdist, names)


def check_wheel(wheel: Path) -> None:
    """Check that the wheel has the package and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        description = archive.read(metadata).decode()
    if relative := RELATIVE.findall(description):
        raise Failed(f"{wheel.name}: an index cannot follow the links {relative}")
    tops = {name.partition("/")[0] for name in names}
    strange = {top for top in tops if not re.match(r"celery_redlock($|-.*info$)", top)}
    here = [*ROOT.glob("celery_redlock/**/*.lua"), ROOT / "celery_redlock/py.typed"]
    missing = {str(path.relative_to(ROOT)) for path in here} - set(names)
    if strange or missing:
        raise Failed(f"{wheel.name}: strange {strange}; missing {missing}")
    refuse(wheel, names)


def unpack_celery_tests(python: Path, folder: Path) -> None:
    """Put the tests of the installed Celery, from its sdist, into a folder."""
    version = run(python, "-c", "import celery; print(celery.__version__)").strip()
    alone = ("--no-deps", "--no-binary", "celery", "--no-build-isolation")
    pip_download = (python, "-m", "pip", "--quiet", "download", *alone)
    run(*pip_download, "--dest", folder, f"celery=={version}", seconds=240)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        top = sdist.name.removesuffix(".tar.gz")
        for member in archive.getmembers():
            name = member.name.removeprefix(f"{top}/")
            if member.isfile() and re.match(r"t/|pyproject.toml$", name):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                path.write_bytes(content.read() if content else b"")


def refuse(archive: Path, names: list[str]) -> None:
    """Check that an archive has no cache and no database."""
    bad = [
        name for name in names if re.search(r"__pycache__|\.pyc$|\.rdb$|_cache/", name)
    ]
    if bad:
        raise Failed(f"{archive.name} has {bad}")


# -- Installing --------------------------------------------------------


def check_install(python: Path, built: Built, constraints: list[str]) -> None:
    """Install the wheel only, and check what pip installed with it."""
    pip(python, built.wheel, *constraints)
    extra = run(python, "-c", CLOSURE).split()
    if extra:
        raise Failed(f"{built.wheel.name} also installed {extra}")
    run(python, "-m", "pip", "check")
    home = run(python, "-c", HOME, cwd=built.suite).strip()
    if "site-packages" not in home:
        raise Failed(f"celery_redlock is imported from {home}")
    said = run(python, "-m", "celery", "--help", cwd=built.suite)
    if "redlock" not in said:
        raise Failed(f"celery has no command redlock:\n{said}")
