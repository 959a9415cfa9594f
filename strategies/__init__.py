"""Hypothesis strategies for equivcheck's Cases, and the same cases from a seed.

`cases()` draws any case; each property has its own choice of cases (`strategies.choices`). What is drawn is small, and
shrinks towards one table, one bag, one lookup, value 1, and defaults.
"""

from strategies.budget import Budget, Profile
from strategies.choices import (
    bounds_cases,
    call_cases,
    cases,
    exact_cases,
    from_menu,
    large_cases,
    layout_cases,
    lone_lookups_cases,
    long_bags_cases,
    many_rows_cases,
    nonfinite_cases,
    optimizer_cases,
    pooling_cases,
    random_case,
    run_length_cases,
    sharing_cases,
    small_table_cases,
    steps_cases,
    stochastic_cases,
    traffic_cases,
    vbe_cases,
    weights_cases,
)
from strategies.edges import edge_cases
from strategies.forced import PAIRS
from strategies.menu import Forced, Menu
from strategies.pool import pool, pooled
from strategies.signatures import Signature, signatures

__equivcheck__ = 1
"""Marks this package as equivcheck's: other projects have folders named `strategies`, too."""

__all__ = [
    "PAIRS",
    "Budget",
    "Forced",
    "Menu",
    "Profile",
    "Signature",
    "bounds_cases",
    "call_cases",
    "cases",
    "edge_cases",
    "exact_cases",
    "from_menu",
    "large_cases",
    "layout_cases",
    "lone_lookups_cases",
    "long_bags_cases",
    "many_rows_cases",
    "nonfinite_cases",
    "optimizer_cases",
    "pool",
    "pooled",
    "pooling_cases",
    "random_case",
    "run_length_cases",
    "sharing_cases",
    "signatures",
    "small_table_cases",
    "steps_cases",
    "stochastic_cases",
    "traffic_cases",
    "vbe_cases",
    "weights_cases",
]
