"""Every simulated wrong kernel is caught, within a hundred cases of the strategy that is there to see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from equivcheck.case import BoundsCheck, IndexFault, OptimizerKind, Pooling, Regime, Values
from equivcheck.compare import judge
from equivcheck.formats import DType
from equivcheck.problem import materialise
from equivcheck.verdict import Status
from strategies import Menu, random_case
from strategies import choices as menus
from strategies.data import Recipe
from tests.selftest.simulated import wrong_sums as sums
from tests.selftest.simulated import wrong_updates as updates
from tests.selftest.simulated.kernel import Kernel
from tests.selftest.simulated.styles import SMALL, replace_fields

CASES = 100
"""Within which a wrong kernel must fail. The slowest needs about half; most need one to ten (measured 2026-11)."""


@dataclass(frozen=True)
class Hunt:
    """A wrong kernel, the menu of cases that shall catch it, and fields that all of them have."""

    kernel: Callable[[], Kernel]
    menu: Menu = menus.ANY
    fixed: dict[str, object] = field(default_factory=dict)


MEAN = replace(menus.POOLING, name="mean", pooling=(Pooling.MEAN,), recipes=(Recipe.SMOOTH,))
PRUNED = replace(
    menus.BOUNDS,
    name="pruned",
    pooling=(Pooling.MEAN,),
    index_faults=(IndexFault.PRUNED,),
    bounds=(BoundsCheck.IGNORE,),
)
LONG = replace(menus.RUN_LENGTH, name="long", hot=(64,), recipes=(Recipe.EXACT, Recipe.SMOOTH))
FP16_ROWS = replace(menus.EXACT, name="fp16 rows", weights=(DType.FP16,), weighted=(None,), recipes=(Recipe.REVEALING,))
ADAGRADS = replace(menus.OPTIMIZER, name="adagrads", optimizers=tuple(OptimizerKind)[1:3])
ADAMS = replace(menus.OPTIMIZER, name="adams", optimizers=tuple(OptimizerKind)[3:])
ROWWISE = replace(menus.OPTIMIZER, name="row-wise", optimizers=(OptimizerKind.ROWWISE_ADAGRAD,))
NARROW = replace(menus.ANY, name="16-bit rows", weights=(DType.FP16, DType.BF16))
SUBNORMAL, OVERFLOWING, ZEROS = Values(Regime.SUBNORMAL), Values(Regime.NEAR_OVERFLOW), Values(Regime.ZEROS)

HUNTS = (
    Hunt(sums.Fp16Accumulator),
    Hunt(sums.Bf16Accumulator),
    Hunt(sums.PairAddInFp16, FP16_ROWS),
    Hunt(sums.LosesLookupAtTileEdge, LONG),
    Hunt(sums.DoublesLookupAtTileEdge, LONG),
    Hunt(sums.LosesLookupOfLongRun, LONG),
    Hunt(sums.WeightsOfNextLookup, menus.WEIGHTS),
    Hunt(sums.DuplicatesTakeFirstWeight, menus.WEIGHTS),
    Hunt(sums.WeightsIgnoredInGradient, menus.WEIGHTS),
    Hunt(sums.BagsOneOff),
    Hunt(sums.PaddingCountedInMean, MEAN),
    Hunt(sums.PrunedShortenMean, PRUNED),
    Hunt(sums.MeanNotDividedInGradient, MEAN),
    Hunt(sums.MeanNotDividedInWeightGradient, replace(menus.WEIGHTS, pooling=(Pooling.MEAN,))),
    Hunt(sums.WeightGradientTimesWeight, menus.WEIGHTS),
    Hunt(sums.WeightGradientLosesColumn, menus.WEIGHTS),
    Hunt(sums.WeightGradientFromUpdatedRows, menus.WEIGHTS),
    Hunt(sums.FrozenGetsWeightGradient, menus.WEIGHTS),
    Hunt(sums.ForeignColumnBlock, menus.SHARING),
    Hunt(sums.RanksInTheWrongOrder, menus.VBE),
    Hunt(sums.GradientRoundedTo16Bits),
    Hunt(sums.TermsRoundedToOutputType, MEAN, {"output": DType.FP16}),
    Hunt(sums.TermsRoundedToOutputType, MEAN, {"output": DType.BF16}),
    Hunt(sums.OutputRoundedInBetween, LONG, {"output": DType.BF16}),
    Hunt(sums.PrunedReadsRowZero, PRUNED),
    Hunt(sums.InvalidContributesNothing, menus.BOUNDS),
    Hunt(sums.RepairLosesWeight, replace(menus.BOUNDS, weighted=(DType.FP32,))),
    Hunt(sums.EmptyBagsTakeRowZero),
    Hunt(sums.NanLeaksFromUnnamedRows, menus.NONFINITE),
    Hunt(sums.NanLeaksThroughGradient, menus.NONFINITE),
    Hunt(sums.FirstTableTwice, menus.SHARING),
    Hunt(sums.SubnormalsFlushed, menus.ANY, {"weights": DType.FP32, "output": DType.FP32, "weight_values": SUBNORMAL}),
    Hunt(updates.FrozenTableNotUpdated, menus.WEIGHTS),
    Hunt(updates.UpdatePerLookup),
    Hunt(updates.UpdatePerFeature, menus.SHARING),
    Hunt(updates.NeighbourWritten),
    Hunt(updates.LastColumnsNotUpdated, menus.RUN_LENGTH),
    Hunt(updates.ZerosLoseTheirSign, menus.ANY, {"weight_values": ZEROS}),
    Hunt(updates.DenseUpdate),
    Hunt(updates.StaleState, menus.STEPS),
    Hunt(updates.OldState, menus.STEPS),
    Hunt(updates.SecondBackwardIgnored, menus.CALLS),
    Hunt(updates.ZeroGradientsSkipped),
    Hunt(updates.SquareOfMeans, ROWWISE),
    Hunt(updates.SumOfSquares, ROWWISE),
    Hunt(updates.MeanOverPaddedWidth, ROWWISE),
    Hunt(updates.SquaresInFp16, ROWWISE),
    Hunt(updates.EpsInsideRoot, ADAGRADS),
    Hunt(updates.EpsInsideRoot, ADAMS),
    Hunt(updates.MomentBeforeItsUpdate, ADAGRADS),
    Hunt(updates.UpdateRoundedFirst, NARROW),
    Hunt(updates.DecayIgnored, ROWWISE),
    Hunt(updates.DecayIgnored, ADAMS),
    Hunt(updates.L2ForDecoupled, ROWWISE),
    Hunt(updates.DecoupledForL2, ROWWISE),
    Hunt(updates.AdamDecaysAsL2, ADAMS),
    Hunt(updates.PowersOneStepLate, ADAMS),
    Hunt(updates.StepNotCounted, replace(menus.STEPS, optimizers=tuple(OptimizerKind)[3:])),
    Hunt(updates.NoBiasCorrection, ADAMS),
    Hunt(updates.BetasSwapped, ADAMS),
    Hunt(updates.PartialAdamPerElement, ADAMS),
    Hunt(updates.RateOfTheNextStep, menus.STEPS),
    Hunt(updates.ZeroRateSkipsState, menus.OPTIMIZER),
    Hunt(updates.MomentsInBf16, menus.OPTIMIZER),
    Hunt(updates.Truncates, NARROW),
    Hunt(updates.RoundsHalfAway, NARROW),
    Hunt(updates.Saturates, menus.ANY, {"output": DType.FP16, "weight_values": OVERFLOWING}),
    Hunt(updates.FlushesStore, NARROW, {"weight_values": SUBNORMAL}),
    Hunt(updates.SecondNeighbour, menus.STOCHASTIC),
    Hunt(updates.RepresentableMove, menus.STOCHASTIC),
)


def first_catch(hunt: Hunt, cases: int = CASES) -> int | None:
    """Number of the first case in which the kernel fails."""
    for seed in range(cases):
        case = replace_fields(random_case(seed, SMALL, hunt.menu), **hunt.fixed)
        if case.bounds_check is BoundsCheck.FATAL:  # simulated kernels do not raise
            case = replace_fields(case, bounds_check=BoundsCheck.IGNORE)
        problem, kernel = materialise(case), hunt.kernel()
        arithmetic = kernel.arithmetic(case)
        if judge(problem, arithmetic, kernel.run(problem)).status is Status.FAILED:
            return seed
    return None


def _id(hunt: Hunt) -> str:
    return f"{getattr(hunt.kernel, '__name__', 'kernel')}-{hunt.menu.name}"


@pytest.mark.parametrize("hunt", HUNTS, ids=_id)
def test_wrong_kernel_is_caught(hunt: Hunt) -> None:
    assert first_catch(hunt) is not None, f"{_id(hunt)} passes {CASES} cases"


@pytest.mark.parametrize("menu", {hunt.menu.name: hunt.menu for hunt in HUNTS}.values(), ids=lambda menu: menu.name)
def test_the_right_kernel_is_not(menu: Menu) -> None:
    """The control: without its mistake, the same kernel passes the same cases."""
    assert first_catch(Hunt(Kernel, menu), 30) is None
