"""Tables of more than 2^32 elements on a GPU: small cases whose rows lie far apart in them.

Sees offsets and row numbers of 32 bits, signed or not, in the forward, the update, and the optimizer's state, and the
base of a table behind a large one. Runs where a GPU has room for the table, and the subject can be handed one that was
filled there (`equivcheck.backends.large`).
"""

from dataclasses import replace

from hypothesis import strategies as st

import strategies
from equivcheck.case import BoundsCheck, Call, Case, Decay, Layout, OptimizerKind, Rounding
from equivcheck.engine import Check, property_
from equivcheck.formats import DType
from equivcheck.runner import Subject
from strategies.data import Recipe
from strategies.menu import BagKind

SPREAD = strategies.Menu(
    name="spread",
    accumulation=(DType.FP32,),
    optimizers=(OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAGRAD),
    decay=(Decay.NONE,),
    rounding=(Rounding.NEAREST,),
    recipes=(Recipe.EXACT, Recipe.SMOOTH),
    bounds=(BoundsCheck.NONE,),
    index_faults=(),
    offset_faults=(),
    feature_parts=(1, 1, 2, 3),
    feature_counts=(0,),
    sizes=(32,),
    dims=((4, 4, 8, 32, 64, 128, 256, 1024),),
    rows=(1, 2, 3, 5, 8, 16, 33),
    rowless=(False,),
    orders=(0,),
    ranks=(0,),
    kinds=(BagKind.LISTED,),
    frozen=(False,),
    empty=(False,),
    layouts=(Layout.CONTIGUOUS,),
    calls=(Call.STEPS, Call.STEPS, Call.FORWARD_ONLY),
    steps=(1, 2),
)
"""Plain cases of every type, pooling and weighting; what happens around the call is other properties' business."""


def spread_cases(budget: strategies.Budget) -> st.SearchStrategy[Case]:
    """Cases that `Large` takes."""
    return strategies.from_menu(SPREAD, budget=budget)


@property_(spread_cases, examples=0.3)
def test_large_tables(case: Case, check: Check) -> None:
    """Indices name rows of tables of any size; nothing outside the buffers is ever read or written."""
    from equivcheck.backends.large import Large

    subject = Subject(check.subject.name, Large(check.subject.backend), check.subject.versions)
    replace(check, subject=subject)(case)
    check.share("first table of more than 2^31 elements", 1, 1)
