"""One update a row: a row hit k times equals one update with its summed gradient.

Sees an update per lookup, and races between the parts of a run.
"""

import msgspec

import strategies
from equivcheck.case import Case, Feature, Lookup, PerSampleWeights, Pooling, Regime, Values
from equivcheck.engine import Check, property_

_MOST = 8_192
"""Lookups of a case whose lookups are made many times."""


@property_(strategies.run_length_cases)
def test_one_update_a_row(case: Case, check: Check) -> None:
    """All lookups of a row form a run; each row gets exactly one update a step, from its whole run, whatever its
    length. So looking a row up k times, unweighted, is looking it up once with a weight of k.
    """
    bags = [bag for feature in case.features for bag in feature.bags]
    times = max((lookup.times for bag in bags for lookup in bag.lookups), default=1)
    times = min(times, 512, max(2, _MOST // max(1, sum(len(bag.lookups) * bag.copies for bag in bags))))
    unweighted = msgspec.structs.replace(case, pooling=Pooling.SUM, per_sample_weights=None, captured=None)
    repeated = check(msgspec.structs.replace(unweighted, features=_with_times(case, times)))
    once = check(
        msgspec.structs.replace(
            unweighted,
            features=_with_times(case, 1),
            per_sample_weights=PerSampleWeights(values=Values(Regime.CONSTANT, magnitude=times)),
        )
    )
    if repeated.exact and once.exact:
        check.same_bits(repeated, once, "k lookups of a row equal one lookup of weight k")


def _with_times(case: Case, times: int) -> tuple[Feature, ...]:
    """The features with every lookup made `times` times."""
    return tuple(
        msgspec.structs.replace(
            feature,
            traffic=None,
            bags=tuple(
                msgspec.structs.replace(bag, lookups=tuple(Lookup(lookup.row, times) for lookup in bag.lookups))
                for bag in feature.bags
            ),
        )
        for feature in case.features
    )
