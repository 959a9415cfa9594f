"""Properties: a choice of cases and a relation, as a decorated function; and their slices, which pytest runs.

    @property_(strategies.run_length_cases)
    def test_run_length(case, check):
        '''Each row gets exactly one update a step, from its whole run, whatever its length.'''
        check(case)

`case` is what the strategy drew: always one Case, so that a saved case replays the property. Whatever else a property
needs (a permutation, the case with other indices) it derives from the case. `check` runs and judges
(`equivcheck.engine.check.Check`). A property is cut into slices with seeds of their own: (property, subject, slice)
is one test.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equivcheck import words
from equivcheck.case import Case

if TYPE_CHECKING:
    import pytest
    from hypothesis.strategies import SearchStrategy

    from equivcheck.engine.check import Check
    from strategies.budget import Budget

    Body = Callable[[Case, Check], None]
    Cases = SearchStrategy[Case] | Callable[[Budget], SearchStrategy[Case]]

ARGUMENT = "equivcheck_slice"
"""Argument of the test functions, through which pytest hands in the slice."""


@dataclass(frozen=True)
class Property:
    """A property as its file declares it.

    Attributes
    ----------
    name
        The function's, without `test_`.
    body
        Called with a case and a Check.
    cases
        A strategy, or a function of the size budget that returns one.
    examples
        Share of the profile's cases that this property runs: 2 for one that needs many, 0.25 for costly ones.
    with_witness
        Whether it needs a witness; without one it is skipped, and says so.
    """

    name: str
    body: Body
    cases: Cases
    examples: float = 1.0
    with_witness: bool = False

    @property
    def sentence(self) -> str:
        """What must hold: the docstring."""
        return inspect.cleandoc(self.body.__doc__ or "")

    @property
    def file(self) -> Path:
        """The file that it stands in."""
        return Path(inspect.getfile(self.body))

    def strategy(
        self, budget: Budget, supports: Callable[[Case], object] | None = None, *, seed: int = 0, part: int = 0
    ) -> SearchStrategy[Case]:
        """The strategy of its cases within a budget; most of them such as a subject `supports`, if it can choose.

        A choice of cases that goes through a list asks for the run's `seed` and the slice's number, `part`, too.
        """
        if not callable(self.cases):
            return self.cases
        asked = inspect.signature(self.cases).parameters
        choosing: Any = self.cases
        known = {"supports": supports, "seed": seed, "part": part}
        found: SearchStrategy[Case] = choosing(budget, **{name: known[name] for name in known if name in asked})
        return found


@dataclass(frozen=True)
class Slice:
    """One test: a property's cases on one subject, from one seed. `witness` only where the property needs one."""

    subject: str
    number: int
    witness: str | None = None

    @property
    def id(self) -> str:
        """As it stands in brackets behind the test's name."""
        return "-".join([self.subject, *([f"vs-{self.witness}"] if self.witness else []), str(self.number)])

    def seed(self, run: int, property_name: str) -> int:
        """Seed of the slice. The subject is no part of it: all subjects get the same cases, as far as budgets allow."""
        return words.derive(run, property_name, self.number)


def property_(
    cases: Cases, *, examples: float = 1.0, with_witness: bool = False
) -> Callable[[Body], Callable[..., None]]:
    """Make a test of a property.

    Parameters
    ----------
    cases, examples, with_witness
        As in `Property`.

    Returns
    -------
    Callable
        A decorator for a function `test_NAME(case, check)`, whose docstring is the contract's sentence.
    """

    def decorate(body: Body) -> Callable[..., None]:
        declared = Property(body.__name__.removeprefix("test_"), body, cases, examples, with_witness)

        def test(equivcheck_slice: Slice, request: pytest.FixtureRequest) -> None:
            from equivcheck.engine.hunt import run_slice

            run_slice(declared, equivcheck_slice, request.node)

        # Not functools.wraps: pytest would read the body's arguments through __wrapped__ and look for fixtures.
        functools.update_wrapper(test, body, updated=())
        del test.__wrapped__  # type: ignore[attr-defined]
        test.__dict__["equivcheck_property"] = declared
        return test

    return decorate


def property_of(function: Any) -> Property | None:
    """The property behind a test function, if it is one."""
    found = getattr(function, "equivcheck_property", None)
    return found if isinstance(found, Property) else None
