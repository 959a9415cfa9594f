"""Runs of pytest and of the command line in processes of their own, on kernels from `kernels.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

KERNELS = Path(__file__).with_name("kernels.py")

PROPERTY = '''
from hypothesis import strategies as st

from equivcheck.case import Bag, Case, Feature, Lookup
from equivcheck.engine import property_

LENGTHS = st.sampled_from([0, 1, 2, 3, 4, 5])
BAGS = st.lists(st.builds(lambda n: Bag((Lookup(0, n),) if n else ()), LENGTHS), min_size=1, max_size=3)
CASES = st.builds(lambda bags: Case(features=(Feature(rows=2, dim=4, bags=tuple(bags)),)), BAGS)


@property_(CASES)
def test_sums(case, check):
    """SUM: the sum over the bag."""
    check(case)
'''


@dataclass(frozen=True)
class Engine:
    """A folder with one property, on which pytest and equivcheck are run."""

    folder: Path

    def run(self, kernel: str, *options: str) -> subprocess.CompletedProcess[str]:
        """pytest on a class of kernels.py, at the quick profile unless told otherwise."""
        command = ["pytest", "-p", "equivcheck.pytest_plugin", "--equivcheck-profile=quick"]
        command += [f"--subject={KERNELS}:{kernel}", "--equivcheck-events=events.jsonl", *options]
        return self.python("-m", *command)

    def equivcheck(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command line."""
        return self.python("-m", "equivcheck", *arguments)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python, without what pytest tells the processes of the run that this test is part of."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, env=kept, timeout=300)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Events of a kind that the last run wrote."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def saved(self) -> list[dict[str, Any]]:
        """Saved cases, as JSON."""
        return [json.loads(path.read_text()) for path in self.paths()]

    def paths(self) -> list[Path]:
        """Files of saved cases."""
        return sorted((self.folder / "failures").glob("*.json"))

    def change(self, old: str, new: str) -> None:
        """Change the property."""
        assert PROPERTY.count(old) == 1
        (self.folder / "test_sums.py").write_text(PROPERTY.replace(old, new))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider\n")
    (tmp_path / "test_sums.py").write_text(PROPERTY)
    return Engine(tmp_path)


@pytest.fixture
def kernels() -> Path:
    """The file of kernels."""
    return KERNELS
