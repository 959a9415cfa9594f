"""Strategies for whole Cases: any case, and for each property the cases that show what it is there to see.

Each is a menu and nothing else. `supports` is a subject's: most cases then come from what it does not refuse. All of
them shrink towards one table of one row and the menu's least width, one bag, one lookup, the first option of every
axis, and seeds of zero.
"""

from __future__ import annotations

from dataclasses import astuple, replace

from hypothesis import strategies as st

from equivcheck import axes
from equivcheck.case import (
    BoundsCheck,
    Call,
    Case,
    Distribution,
    IndexFault,
    Layout,
    OffsetFault,
    OptimizerKind,
    Place,
    Pooling,
    Rounding,
    Special,
)
from equivcheck.formats import DType
from strategies import forced, whole
from strategies.budget import Budget, Profile
from strategies.chooser import HypothesisChooser, SeededChooser
from strategies.data import Recipe
from strategies.menu import (
    ANY_DIMS,
    POWER_DIMS,
    QUAD_DIMS,
    TIMES,
    TRAFFIC_BAGS,
    BagKind,
    Forced,
    Menu,
    Sharing,
    Supports,
    ascending,
)

_NO_FAULTS = (BoundsCheck.NONE,)
_WEIGHTED = (DType.FP32, DType.FP16)
_EXACT = (Recipe.EXACT, Recipe.REVEALING, Recipe.CANCELLING, Recipe.SUBNORMAL)

_POISON = tuple((place, value) for place in Place for value in Special)

ANY = Menu(
    poison=(*(None,) * 6 * len(_POISON), *_POISON),
    forced=(*(None,) * len(forced.PAIRS), *forced.PAIRS, *forced.RARE),
)
"""Everything, half of it with a forced pair."""
_PLAIN = Menu(
    bounds=_NO_FAULTS, index_faults=(), calls=(Call.STEPS,), layouts=(Layout.CONTIGUOUS,), steps=(1,), empty=(False,)
)
"""One step without faults, layouts or special calls: what the properties below add to."""

EXACT = replace(
    _PLAIN,
    name="exact",
    recipes=(Recipe.EXACT, Recipe.REVEALING, Recipe.SQUARES, Recipe.CANCELLING, Recipe.SUBNORMAL, Recipe.OVERFLOW),
    forced=(*(None,) * 16, *forced.SUBNORMAL, *forced.OVERFLOW),
)
RUN_LENGTH = replace(
    _PLAIN,
    name="run length",
    recipes=_EXACT,
    pooling=(Pooling.SUM, Pooling.MEAN),
    hot=(*axes.RUN_LENGTHS,),
    rowless=(False,),
    forced=(*(None,) * 6, *forced.NARROW_TABLES, *forced.THRESHOLDS * 2, *forced.LONG_UPDATES),
)
POOLING = replace(
    _PLAIN,
    name="pooling",
    feature_counts=(0,),
    empty=ANY.empty,
    forced=(*(None,) * 4, *forced.MEAN, *forced.FP64_MEANS),
)
WEIGHTS = replace(
    _PLAIN,
    name="weights",
    weighted=_WEIGHTED,
    weight_gradient=(True, True, True, False),
    frozen=(*(False,) * 4, True),
    forced=(*(None,) * 16, *forced.FROZEN * 3),
)
SHARING = replace(
    _PLAIN,
    name="sharing",
    sharing=(Sharing.SURELY, Sharing.UNSORTED),
    feature_counts=(*ANY.feature_counts, *forced.BYTES),
    forced=(*(None,) * 30, *forced.UNSORTED, *forced.DECAY, *forced.MANY_FEATURES * 2),
)
VBE = replace(
    _PLAIN,
    name="vbe",
    ranks=(1, 2, 3, 4, 8),
    pooling=(Pooling.SUM, Pooling.MEAN),
    kinds=(BagKind.LISTED,),
    empty=ANY.empty,
)
LAYOUT = replace(
    _PLAIN,
    name="layout",
    layouts=tuple(Layout),
    weighted=(None, *_WEIGHTED),
    calls=(Call.STEPS, Call.STEPS, Call.RETAINED, Call.OUTSTANDING),
)
BOUNDS = replace(
    _PLAIN,
    name="bounds",
    bounds=tuple(BoundsCheck)[1:],
    index_faults=tuple(IndexFault),
    offset_faults=(*OffsetFault, OffsetFault.PLUS_ONE, OffsetFault.PLUS_ONE),
    forced=(*(None,) * 16, *forced.BOUNDS, *forced.WARNED * 3, *forced.PRUNED_MEANS * 2),
    steps=(1, 2),
)
STOCHASTIC = replace(
    _PLAIN,
    name="stochastic",
    rounding=(Rounding.STOCHASTIC,),
    weights=(DType.FP16, DType.BF16, DType.FP32),
    recipes=(Recipe.EXACT, Recipe.SMOOTH, Recipe.SMOOTH, Recipe.ANY),
    forced=(*(None,) * 6, *forced.STOCHASTIC_KINDS * 2, *forced.STOCHASTIC, *forced.STOCHASTIC_INFINITY * 2),
    accumulation=(*(DType.FP32,) * 6, DType.FP64),
    calls=(Call.STEPS, Call.RESTORED, Call.OUTSTANDING),
    poison=(*(None,) * 9, *((Place.TOUCHED_ROW, value) for value in Special)),
)
NONFINITE = replace(
    _PLAIN,
    name="nonfinite",
    poison=_POISON,
    recipes=(Recipe.EXACT, Recipe.SMOOTH),
    weighted=(None, None, *_WEIGHTED),
    forced=(*(None,) * 8, *forced.INFINITE_WEIGHTS),
)
CALLS = replace(
    _PLAIN,
    name="calls",
    calls=tuple(Call)[1:],
    steps=(1, 2, 3),
    frozen=(False, False, False, True),
    forced=(*(None,) * 12, *forced.PENDING * 2),
)
STEPS = replace(
    _PLAIN,
    name="steps",
    steps=(2, 3, 4),
    growing=(False, False, True),
    calls=(Call.STEPS, Call.STEPS, Call.RESTORED, Call.RATE_CHANGED),
    forced=(*(None,) * 16, *forced.RESTORED, *forced.GROWING),
)
OPTIMIZER = replace(
    _PLAIN,
    name="optimizer",
    optimizers=tuple(OptimizerKind)[1:],
    recipes=(Recipe.EXACT, Recipe.SMOOTH, Recipe.SQUARES, Recipe.TINY, Recipe.TINY, Recipe.STILL, Recipe.ROOTS),
    steps=(1, 2),
    forced=(
        *(None,) * 12,
        *forced.DECAY,
        *forced.BIAS_CORRECTIONS * 3,
        *forced.LATE_BIAS_CORRECTIONS,
        *forced.ELEMENT_WISE * 4,
        *forced.ROOTS * 4,
        *forced.STILL,
    ),
)
_PRODUCT_DIMS = tuple(d for d in QUAD_DIMS if 60 <= d <= 132)
"""Around the widths of 64 to 128 for which TorchRec's Triton TBE multiplies counts with small fp16 tables."""
SMALL_TABLES = replace(
    _PLAIN,
    name="small tables",
    dims=(tuple(d for d in QUAD_DIMS if d < 36), tuple(d for d in ANY_DIMS if d < 36), _PRODUCT_DIMS),
    rows=ascending((1, 2, 3, 5, 10, 16, 63, 64, 65)),
    hot=(*(0,) * 20, *(n for n in TIMES if n > 32)),
    feature_counts=(0, 0, 0, 0, 31, 33),
    forced=(None, *forced.small_products(_PRODUCT_DIMS), *forced.small_edges()),
)
TRAFFIC = replace(
    _PLAIN,
    name="traffic",
    kinds=(BagKind.TRAFFIC,),
    ranks=(0, 0, 0, 1),
    rows=ascending((*axes.ROWS[1:], *axes.DISTINCT_ROWS), (3, 30, 100, 300, 300, 500)),
    traffic_bags=TRAFFIC_BAGS,
    distributions=tuple(Distribution),
    forced=(*(None,) * 16, *forced.LONG_RUNS),
)
LARGE = replace(
    _PLAIN,
    name="large",
    dims=((1, 2, 4, 4, 8, 32, 128), POWER_DIMS),
    sizes=(1,),
    rows=(10, 1000, 2**20, 2**23 + 1, *axes.LARGE_ROWS),
    copies=(1, 1, 1, 2, 65, *axes.LARGE_BATCHES),
    feature_parts=(1, 1, 2),
    feature_counts=(0,),
    recipes=(Recipe.EXACT, Recipe.SMOOTH),
)
_MANY_ROWS = 70_000
MANY_ROWS = replace(
    _PLAIN,
    name="many rows",
    kinds=(BagKind.TRAFFIC,),
    distributions=(Distribution.UNIFORM,),
    dims=((1, 2), (4,)),
    rows=(_MANY_ROWS,),
    traffic_bags=(5000,),
    traffic_lengths=(1, 1, 2),
    hot=(0,),
    recipes=(Recipe.EXACT,),
    pooling=(Pooling.SUM,),
    ranks=(0, 1),
    feature_parts=(1, 1, 2),
    feature_counts=(0,),
    rowless=(False,),
    sharing=(Sharing.NEVER, Sharing.MAYBE),
    sizes=(1,),
)
"""Tables of which some 5,000 rows are looked up, 300 of them above 2^16; some 20 are 2^16 rows away from another."""
_UNEVEN = (2_049, 2_307, 3_001)
"""Lengths between those that fp16 and bf16 hold, by 1/3001 and more; the bound of so long a sum is nearer."""
LONG_BAGS = replace(
    _PLAIN,
    name="long bags",
    recipes=(Recipe.EXACT,),
    pooling=(Pooling.SUM, Pooling.MEAN),
    dims=((1, 2, 3, 4), (4,)),
    hot=(*_UNEVEN, 9_001, 2**15 + 1, 2**16 + 1),
    longest_uneven=max(_UNEVEN),
    forced=(forced.beyond(max(_UNEVEN)), *(forced.bag_beyond(2**16),) * 2, *forced.uneven_means(_UNEVEN)),
    rows=(1, 2, 3, 5),
    times=((1, 2, 3),),
    feature_counts=(0,),
    feature_parts=(1, 1, 2),
    rowless=(False,),
    ranks=(0, 0, 1),
    sharing=(Sharing.NEVER, Sharing.MAYBE),
    sizes=(1,),
)
"""A bag, or a batch of as many bags, of more lookups than 15 and 16 bits hold, or a mean of an odd number of them that
no 16-bit type holds; all lookups are of one row.
"""
WIDE_RUNS = replace(
    LONG_BAGS,
    name="wide runs",
    dims=((1028,),),
    hot=(40, 100, 257, 300),
    forced=(None,),
    feature_parts=(1,),
)
"""A run that kernels treat in a way of its own, or split, in a table of more columns than a block may have."""
LONE_LOOKUPS = replace(
    _PLAIN,
    name="lone lookups",
    kinds=(BagKind.TRAFFIC,),
    traffic_bags=tuple(range(32, 67)),
    traffic_lengths=(1,),
    dims=((4, 8, 36), (1028,)),
    hot=(0,),
    pooling=(Pooling.SUM, Pooling.MEAN),
    ranks=(0, 0, 0, 1),
    feature_counts=(0,),
    feature_parts=(1, 1, 2),
    rowless=(False,),
    sharing=(Sharing.NEVER, Sharing.MAYBE),
    sizes=(1,),
    forced=(None, forced.lone_halves()),
)
"""A warp's bags and more of one lookup each, whose rows a kernel may store without summing; also in tables of more than
1,024 columns, for which FBGEMM's CUDA TBE has another forward.
"""
MENUS = (
    *(ANY, EXACT, RUN_LENGTH, POOLING, WEIGHTS, SHARING, VBE, LAYOUT, BOUNDS, STOCHASTIC, NONFINITE, CALLS, STEPS),
    *(OPTIMIZER, SMALL_TABLES, TRAFFIC, LARGE),
)
"""All whose cases fit into any budget."""
_DEFAULT = Profile.DEFAULT.budget


@st.composite
def from_menu(draw: st.DrawFn, *menus: Menu, budget: Budget = _DEFAULT) -> Case:
    """A case of one of the menus, within a budget."""
    chooser = HypothesisChooser(draw)
    return whole.case(chooser, chooser.choose(menus), budget)


def _from(menu: Menu, budget: Budget, supports: Supports | None, *others: Menu) -> st.SearchStrategy[Case]:
    """Cases of the menus. With `supports`, seven of eight from what the subject takes; the rest stays counted."""
    menus = (menu, *others)
    if supports is not None:
        menus = (*[part.supported(supports) for part in menus] * 7, *menus)
    return from_menu(*menus, budget=budget)


def cases(
    budget: Budget = _DEFAULT, *, focus: Forced | None = None, supports: Supports | None = None
) -> st.SearchStrategy[Case]:
    """Any case: all axes and edges, half of the cases with a forced pair; all of them with `focus`, if given."""
    return _from(ANY if focus is None else replace(ANY, forced=(focus,)), budget, supports)


def exact_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Cases whose sums are exact in every order, so that results are judged to the bit."""
    return _from(EXACT, budget, supports)


def run_length_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Exact cases with a run of a length around a threshold."""
    return _from(RUN_LENGTH, budget, supports)


def pooling_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """SUM, MEAN and NONE, with empty bags; MEAN with 16-bit output is forced."""
    return _from(POOLING, budget, supports)


def weights_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Per-sample weights, most with a gradient of their own."""
    return _from(WEIGHTS, budget, supports)


def sharing_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Features that share tables, in ascending order and not."""
    return _from(SHARING, budget, supports)


def vbe_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Variable batches of one to eight ranks, some of them empty."""
    return _from(VBE, budget, supports)


def layout_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Inputs that are strided, slices, misaligned, expanded or transposed."""
    return _from(LAYOUT, budget, supports)


def bounds_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Checked bounds, with indices and offsets out of them in most cases."""
    return _from(BOUNDS, budget, supports)


def stochastic_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Stochastic rounding: 16-bit tables, and fp32 ones, which it leaves alone."""
    return _from(STOCHASTIC, budget, supports)


def nonfinite_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """NaN or an infinity in looked-up rows, in all others, in a gradient, or in a per-sample weight."""
    return _from(NONFINITE, budget, supports)


def call_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Everything around the call: outstanding, retained, forward only, streams, graphs, frozen features."""
    return _from(CALLS, budget, supports)


def steps_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Two to four steps with other data, batches and learning rates."""
    return _from(STEPS, budget, supports)


def optimizer_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Optimizers with state, among them exact squares and gradients whose squares underflow 16 bits."""
    return _from(OPTIMIZER, budget, supports)


def small_table_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Narrow tables of few rows with long runs: what small-table paths are for."""
    return _from(SMALL_TABLES, budget, supports)


def traffic_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Bags by a distribution: many hot rows at once, and numbers of distinct rows around 1,024."""
    return _from(TRAFFIC, budget, supports)


def _widened(budget: Budget) -> Budget:
    """Room for cases of one size, also where other cases are smaller."""
    return Budget(*(max(size, 2**20) for size in astuple(budget)))


def many_rows_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """More rows than 16 bits hold, and 5,000 runs; of one size, also where other cases are smaller."""
    return _from(MANY_ROWS, _widened(budget), supports)


def long_bags_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Bags and batches beyond 2^15 and 2^16, and long runs in wide tables; of one size in every profile."""
    return _from(LONG_BAGS, _widened(budget), supports, LONG_BAGS, LONG_BAGS, WIDE_RUNS)


def lone_lookups_cases(budget: Budget = _DEFAULT, *, supports: Supports | None = None) -> st.SearchStrategy[Case]:
    """Many bags of one lookup each, in narrow and in wide tables; of one size, also where other cases are smaller."""
    return _from(LONE_LOOKUPS, _widened(budget), supports)


def large_cases(
    budget: Budget = Profile.THOROUGH.budget, *, supports: Supports | None = None
) -> st.SearchStrategy[Case]:
    """Tables and row ids beyond 2^24 and 2^31, and batches above 65,535, as far as the budget goes."""
    return _from(LARGE, budget, supports)


def random_case(seed: int, budget: Budget = _DEFAULT, menu: Menu = ANY) -> Case:
    """A case as a pure function of the seed, without Hypothesis: 0.2 ms instead of 2.5, and nothing to shrink."""
    return whole.case(SeededChooser(seed), menu, budget)
