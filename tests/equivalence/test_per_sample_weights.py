"""Per-sample weights: forward, update, and their own gradient; ones agree with no weights.

Sees weights paired with the wrong lookup (an unstable sort), and gradients taken from updated rows.
"""

import msgspec

import strategies
from equivcheck.case import Case, PerSampleWeights, Regime, Values
from equivcheck.engine import Check, property_


@property_(strategies.weights_cases, examples=2)
def test_per_sample_weights(case: Case, check: Check) -> None:
    """Per-sample weights multiply each looked-up row; dL/dp_i is <w[row_i], dY[bag of i]>, from the weights before the
    update.
    """
    check(case)


@property_(strategies.exact_cases, examples=0.5)
def test_weights_of_one(case: Case, check: Check) -> None:
    """Per-sample weights multiply each looked-up row: weights of one change nothing."""
    without = check(msgspec.structs.replace(case, per_sample_weights=None))
    ones = PerSampleWeights(values=Values(Regime.CONSTANT))
    weighted = check(msgspec.structs.replace(case, per_sample_weights=ones))
    if without.exact and weighted.exact:
        check.same_bits(without, weighted, "weights of one agree with no weights")
