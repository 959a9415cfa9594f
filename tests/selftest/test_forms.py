"""Every algebraic form of an update is right, where the forms differ most: large steps and decays, fast averages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from equivcheck.case import Bag, Case, Decay, Feature, Lookup, Optimizer, OptimizerKind, Regime, Values
from equivcheck.compare import judge
from equivcheck.problem import Problem, materialise
from equivcheck.verdict import Status
from tests.selftest.simulated.kernel import Kernel, Style
from tests.selftest.simulated.steps import CorrectionForm, DecayForm, Forms, MomentForm, SquareForm, StepForm

RATE = 8.0
OPTIMIZERS = {
    "l2": Optimizer(OptimizerKind.ROWWISE_ADAGRAD, RATE, decay=Decay.L2, weight_decay=0.125),
    "decoupled": Optimizer(OptimizerKind.ROWWISE_ADAGRAD, 1.0, decay=Decay.DECOUPLED, weight_decay=1.0),
    "adagrad": Optimizer(OptimizerKind.ADAGRAD, RATE),
    "adam": Optimizer(OptimizerKind.ADAM, RATE, beta1=0.125, beta2=0.125, weight_decay=0.0625, step=3),
}


def problem(optimizer: Optimizer, seed: int) -> Problem:
    """Single lookups of smooth values."""
    smooth = Values(Regime.UNIFORM)
    return materialise(
        Case(
            features=(Feature(rows=40, dim=24, bags=tuple(Bag((Lookup(row),)) for row in range(40))),),
            optimizer=optimizer,
            weight_values=smooth,
            gradient_values=smooth,
            state_values=smooth,
            seed=seed,
        )
    )


def forms(name: str) -> Iterator[Forms]:
    """All forms that make a difference to an optimizer."""
    if name == "adam":
        for parts in product(DecayForm, MomentForm, SquareForm, CorrectionForm):
            yield Forms(StepForm.MULTIPLIER, *parts)
    else:
        for step, decay in product(StepForm, DecayForm if name != "adagrad" else (DecayForm.FACTOR,)):
            yield Forms(step, decay)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_form_is_right(name: str) -> None:
    for seed, form in enumerate(forms(name)):
        given, kernel = problem(OPTIMIZERS[name], seed), Kernel(Style(forms=form))
        verdict = judge(given, kernel.arithmetic(given.case), kernel.run(given))
        assert verdict.status is not Status.FAILED, (form, verdict.discrepancies[0])
