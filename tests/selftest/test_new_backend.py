"""A backend outside of the repository: written by `equivcheck new-backend`, found by its entry point, and right."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK = ("--equivcheck-profile=quick", "-q", "-p", "no:cacheprovider")


def _run(environment: dict[str, str], folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def _environment(*paths: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONSAFEPATH": "1"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template, as the command writes it."""
    folder = tmp_path_factory.mktemp("new") / "my-own-tbe"
    done = _run(_environment(ROOT), folder.parent, sys.executable, "-m", "equivcheck", "new-backend", str(folder))
    assert done.returncode == 0, done.stderr
    assert "equivcheck check --subject my-own-tbe" in done.stdout
    return folder


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the package is installed, by what an installer leaves behind."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    group, points = next(iter(project["entry-points"].items()))
    lines = [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return _environment(site, package, ROOT)


def test_it_is_short_and_has_no_placeholders(package: Path) -> None:
    source = (package / "my_own_tbe.py").read_text()
    assert len(source.splitlines()) < 90
    assert "{" + "{" not in source
    assert "class MyOwnTbe:" in source


def test_backends_lists_it(installed: dict[str, str], tmp_path: Path) -> None:
    done = _run(installed, tmp_path, sys.executable, "-m", "equivcheck", "backends")
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("my-own-tbe ") and " yes " in line for line in done.stdout.splitlines())


def test_the_suite_finds_it_by_name_and_it_passes(installed: dict[str, str], tmp_path: Path) -> None:
    """Three files, the whole suite below."""
    files = [str(ROOT / "tests" / "equivalence" / f"test_{name}.py") for name in ("forward", "sharing", "steps")]
    plugin = ("-p", "equivcheck.pytest_plugin", "--import-mode=importlib", "-c", os.devnull, "--rootdir", str(tmp_path))
    done = _run(installed, tmp_path, sys.executable, "-m", "pytest", *plugin, *files, *QUICK, "--subject=my-own-tbe")
    assert done.returncode == 0, done.stdout[-3000:]


def test_it_is_a_subject_of_check(installed: dict[str, str], tmp_path: Path) -> None:
    options = ("run_length", "--subject", "my-own-tbe", "--profile", "quick", "-n", "1")
    done = _run(installed, tmp_path, sys.executable, "-m", "equivcheck", "check", *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "sentence"), [("9lives", "is no name of a package"), (".", "exists and is not empty")]
)
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "my-tbe").mkdir()
    (tmp_path / "my-tbe" / "file").touch()
    folder = str(tmp_path / "my-tbe") if name == "." else str(tmp_path / name)
    done = _run(_environment(ROOT), tmp_path, sys.executable, "-m", "equivcheck", "new-backend", folder)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.soak
def test_the_suite_passes_in_a_fresh_environment(package: Path, tmp_path: Path) -> None:
    """Wheels of equivcheck and of the template, installed; dependencies come from this environment, by a .pth file."""
    fresh = tmp_path / "venv"
    venv.create(fresh, with_pip=False)
    python = fresh / "bin" / "python"
    site = fresh / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in _environment().items() if name != "PYTHONPATH"}
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps")
    build = ("--no-build-isolation", "--no-index", "--ignore-installed")
    for source in (ROOT, package):
        done = _run(environment, tmp_path, *pip, *build, str(source))
        assert done.returncode == 0, done.stderr[-3000:]
    suite = ("--pyargs", "equivcheck.suite", "--subject=my-own-tbe")
    done = _run(environment, tmp_path, str(python), "-m", "pytest", *suite, *QUICK)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
