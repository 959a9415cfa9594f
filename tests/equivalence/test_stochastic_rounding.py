"""Stochastic rounding: a neighbour, unbiased, seeded, independent; exact values kept, wide storage untouched.

Sees rounding that does nothing, bias, random numbers that rows, tables, paths, steps or seeds share.
"""

from itertools import product

import msgspec
import numpy as np

import strategies
from equivcheck.case import Call, Case, Distribution, Feature, Pooling, Regime, Step, Traffic, Values
from equivcheck.compare import states_before
from equivcheck.dependence import independent, independent_between
from equivcheck.engine import Check, property_
from equivcheck.formats import DType
from equivcheck.oracle import UpdateExpectation, expect
from equivcheck.outcome import Update
from equivcheck.runner import Run
from equivcheck.stochastic import Decisions, Statistic, decisions, unbiased
from equivcheck.verdict import Discrepancy, Symptom, Tensor

WIDE, LARGE, NARROW = (
    ((32, 1024), (16, 256), (16, 256)),
    ((64, 1024), (16, 256), (16, 256)),
    ((128, 32), (128, 32), (128, 32)),
)
"""Rows and columns of tables. 4,096 elements are enough to see two that share one random number, whatever is between
them (`equivcheck.dependence` sees it from some 700 pairs on), or a bias of 0.1 units in the last place. 32,768 show
random numbers that repeat after 2^14 elements, and twice as many a bias of shares near 1/512."""
RUNS = (1, 33, 257)
"""Lookups of each row of a table: one alone, and one more than those that a warp has threads, and than the longest run
that kernels treat as short (TorchRec's threshold is 256)."""
_TINY_RATES = {DType.FP16: 2.0**-20, DType.BF16: 2.0**-17}
"""A 512th of a unit in the last place of numbers from 1/2 to 1."""
_EQUAL = Values(Regime.CONSTANT, magnitude=181, exponent=-7)
"""Of as many bits as bf16 has, so that updates are no multiples of a unit in the last place."""
NAMES = ("short runs", "middle runs", "long runs")


@property_(strategies.stochastic_cases)
def test_stochastic_rounding(case: Case, check: Check) -> None:
    """Stochastic rounding applies only where storage is narrower than the arithmetic: one of the neighbours,
    repeatable from its seed; representable values stay.
    """
    first = check(case)
    if first.deterministic:
        check.same_bits(first, check(case), "stochastic rounding repeats from its seed")


@property_(strategies.stochastic_cases, examples=0.1)
def test_stochastic_statistics(case: Case, check: Check) -> None:
    """Stochastic rounding is unbiased in the normal range, and independent between elements, rows, tables, runs, steps
    and seeds.
    """
    run = check(_many_elements(case))
    decided = _decisions(run)
    if decided is None:
        return
    again = _decisions(check(_other_seed(run.case)))
    blocks = {f"{name}, step {step}": part for (step, name), part in zip(product((1, 2), NAMES), decided, strict=True)}
    first = dict(list(blocks.items())[: len(NAMES)])
    statistics = [
        *unbiased(*first.values()),
        *(statistic for part in first.values() for statistic in unbiased(part)),
        *independent(blocks),
    ]
    if again is not None:  # seeds at the same step: a system may add both, and has another seed's numbers a step later
        statistics += independent_between(first, {"another seed": again[0]})
    check.share("statistics of stochastic rounding", sum(s.passed for s in statistics), len(statistics))
    wrong = [_discrepancy(statistic) for statistic in statistics if not statistic.passed]
    if wrong:
        check.fail(run, *wrong)


def _many_elements(case: Case) -> Case:
    """The case's types and optimizer on a table for each of `RUNS`; narrow ones take the interpreter longer.

    As many bags as rows, so that the output stays small: a bag has as many lookups as a run. A quarter of the cases has
    updates far below a unit in the last place, which random numbers of few bits round up too often or never; another
    has elements that are all equal, which random numbers of the value would round alike.
    """
    kind = case.seed % 4
    dtype = DType.FP16 if case.weights is DType.FP32 else case.weights
    shapes = (WIDE, WIDE, LARGE, NARROW)[kind]
    rate = _TINY_RATES[dtype] if kind == 2 else 2.0**-6
    equal = _EQUAL if kind == 1 else None
    weights = Regime.SAME_SIGN if kind == 2 else Regime.NORMAL
    return msgspec.structs.replace(
        case,
        features=tuple(
            Feature(rows=rows, dim=dim, traffic=Traffic(rows, run, distribution=Distribution.CYCLIC))
            for (rows, dim), run in zip(shapes, RUNS, strict=True)
        ),
        weights=dtype,
        optimizer=msgspec.structs.replace(case.optimizer, learning_rate=rate, eps=2.0**-3),
        weight_values=equal or Values(weights),
        gradient_values=equal or Values(Regime.NORMAL),
        state_values=equal or Values(Regime.SAME_SIGN),
        per_sample_weights=None,
        pooling=Pooling.SUM,
        poison=(),
        call=case.call if case.call in (Call.RESTORED, Call.OUTSTANDING) else Call.STEPS,
        steps=(Step(), Step()),
        feature_order=0,
        ranks=0,
    )


def _other_seed(case: Case) -> Case:
    """The first table and step, with other random numbers: of a seed of which one bit differs, each of 31 in its turn.

    The seed also draws other values.
    """
    other = case.seed ^ 1 << case.seed % 31
    return msgspec.structs.replace(case, features=case.features[:1], steps=case.steps[:1], seed=other)


def _decisions(run: Run) -> tuple[Decisions, ...] | None:
    """Of each step's tables in turn; None where the run was not right."""
    if not run.right or run.outcome is None or run.problem is None or run.arithmetic is None:
        return None
    expectation = expect(run.problem, run.arithmetic, states_before(run.problem, run.outcome))
    decided = []
    for expected, result in zip(expectation.calls, run.outcome.results, strict=True):
        if isinstance(expected, UpdateExpectation) and isinstance(result, Update):
            for table, stored in zip(expected.tables, result.after.tables, strict=True):
                decided.append(decisions(table.rows, stored[table.touched]))
    return tuple(decided)


def _discrepancy(statistic: Statistic) -> Discrepancy:
    middle = (statistic.low + statistic.high) / 2
    radius = (statistic.high - statistic.low) / 2
    return Discrepancy(
        Tensor.ROWS,
        Symptom.STATISTIC,
        -1,
        f"{statistic.name}, {statistic.elements:,} elements",
        actual=statistic.found,
        truth=middle,
        low=statistic.low,
        high=statistic.high,
        error=abs(statistic.found - middle),
        bound=radius,
        ratio=abs(statistic.found - middle) / radius if radius else np.inf,
    )
