"""Curated cases and real shards: the same problems in every run, beside the drawn ones.

Sees what depends on many tables of different sizes side by side, as real jobs hold them.
"""

from hypothesis import strategies as st

from equivcheck import golden
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(st.deferred(lambda: st.sampled_from(golden.curated_cases())))
def test_curated(case: Case, check: Check) -> None:
    """The whole contract, on cases that were chosen so that every axis and every edge comes up."""
    check(case)


@property_(st.deferred(lambda: st.sampled_from(golden.shard_cases())), examples=0.1)
def test_shards(case: Case, check: Check) -> None:
    """The whole contract, on the tables of real shards, with rows, batch, width and bag lengths scaled down."""
    check(case)
