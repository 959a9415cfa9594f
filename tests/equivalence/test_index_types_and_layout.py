"""Index types and layout: int32 agrees with int64, strided with contiguous, any gradient layout.

Sees pointer arithmetic that is too narrow, and assumed strides.
"""

import msgspec

import strategies
from equivcheck.case import Case, IndexType, Layout, Layouts
from equivcheck.engine import Check, property_


@property_(strategies.layout_cases)
def test_layout(case: Case, check: Check) -> None:
    """Strided inputs give what their contiguous copies give; indices, offsets, weights and gradients are otherwise
    unmodified.
    """
    strided = check(case)
    # An expanded gradient has equal values, so its contiguous twin keeps that layout.
    expanded = case.layouts.gradient is Layout.EXPANDED
    plain = Layouts(gradient=Layout.EXPANDED if expanded else Layout.CONTIGUOUS)
    if plain == case.layouts:
        return
    contiguous = check(msgspec.structs.replace(case, layouts=plain))
    # Two right paths may add in another order: plain PyTorch's dot products do where a gradient is strided (2.13, CPU).
    if strided.exact and contiguous.exact:
        check.same_bits(contiguous, strided, "strided inputs give what their contiguous copies give")


@property_(strategies.cases, examples=0.5)
def test_index_types(case: Case, check: Check) -> None:
    """int32 and int64 indices agree."""
    if case.bad_indices or case.bad_offsets:
        # The types' own extremes are other numbers, so the two cases would not be the same.
        case = msgspec.structs.replace(case, bad_indices=(), bad_offsets=())
    wide = check(msgspec.structs.replace(case, indices=IndexType.INT64))
    narrow = check(msgspec.structs.replace(case, indices=IndexType.INT32))
    if wide.deterministic:
        check.same_bits(wide, narrow, "int32 and int64 indices agree")
