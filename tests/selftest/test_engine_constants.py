"""Drawn cases depend on their seed alone, not on the modules that happen to be loaded."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import hypothesis
import pytest

import strategies
from equivcheck.case import Case
from equivcheck.engine.constants import seed_alone

_NAMES = (f"a_module_of_the_users_{number}" for number in itertools.count())


def drawn(guard: AbstractContextManager[None]) -> list[bytes]:
    found: list[bytes] = []

    def example(case: Case) -> None:
        found.append(case.to_json())

    settings = hypothesis.settings(
        max_examples=120,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    with guard:
        hypothesis.seed(7)(settings(hypothesis.given(strategies.cases())(example)))()
    return found


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[object]:
    """Loads a module with constants of its own when it is called."""
    names: list[str] = []

    def load() -> None:
        name = next(_NAMES)
        path = tmp_path / f"{name}.py"
        path.write_text(f"NUMBERS = {[*range(101, 400)]}\n")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        names.append(name)

    yield load
    for name in names:
        del sys.modules[name]


def test_a_module_that_is_loaded_changes_no_case(loaded: object) -> None:
    assert callable(loaded)
    first = drawn(seed_alone())
    loaded()
    assert drawn(seed_alone()) == first


def test_hypothesis_by_itself_would_draw_others(loaded: object) -> None:
    assert callable(loaded)
    first = drawn(contextlib.nullcontext())
    loaded()
    assert drawn(contextlib.nullcontext()) != first
