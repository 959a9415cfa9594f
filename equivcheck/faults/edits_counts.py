"""Source edits of the Triton TBE that count too little: bits of a feature's number, a mean's lookups, wide columns."""

from __future__ import annotations

from equivcheck.faults.fault import Edit, Fault, Kind, Subtlety

_EDGE = Subtlety.EDGE


def _features_of(bits: int) -> Fault:
    return Fault(
        f"features-of-{bits}-bits",
        Kind.OFFSETS,
        f"Numbers of features are cut to {bits} bits in the backward.",
        _EDGE,
        (
            Edit(
                "transpose.py",
                "    feature = tl.load(bags.feature + bag, mask=live, other=0)",
                f"    feature = tl.load(bags.feature + bag, mask=live, other=0) & {(1 << bits) - 1}",
            ),
        ),
        first=("sharing",),
    )


def _cut_at_1024(which: str, old: str, new: str) -> Fault:
    return Fault(
        f"{which}-runs-cut-at-1024-columns",
        Kind.RUNS,
        f"Updates of {which} runs end with column 1,024.",
        _EDGE,
        (Edit("backward.py", old, new),),
        first=("long_bags",),
    )


_LONG = "        row, element, dim = _row_of_run(runs, tables, run, live, VECTOR)\n"
_LONG_STATE = "        now = current(state, row, element, dim, column, live, ACCUMULATION, OPTIMIZER)\n        chunk ="
_MIDDLE = "        row, element, dim = _row_of_run(runs, tables, run, exists, VECTOR)\n"

COUNTS: tuple[Fault, ...] = (
    _cut_at_1024("long", _LONG + _LONG_STATE, f"{_LONG}        dim = tl.minimum(dim, 1024)\n{_LONG_STATE}"),
    _cut_at_1024("middle", _MIDDLE, f"{_MIDDLE}        if IS_MIDDLE:\n            dim = tl.minimum(dim, 1024)\n"),
    Fault(
        "mean-square-of-1024-columns",
        Kind.OPTIMIZER,
        "Row-wise Adagrad's mean(G^2) leaves out columns from 1,024 on.",
        _EDGE,
        (
            Edit(
                "optimizers.py",
                "m = first + _mean_square(regularised, dim)",
                "m = first + _mean_square(tl.where(column[None, :] < 1024, regularised, 0.0), dim)",
            ),
        ),
    ),
    _features_of(7),
    _features_of(8),
    Fault(
        "frozen-features-in-a-word",
        Kind.WEIGHT_GRADIENT,
        "Which features are frozen is kept in 32 bits, and used again for the 33rd feature and further ones.",
        _EDGE,
        (
            Edit(
                "weight_gradient.py",
                "tl.load(asks + feature, mask=owned, other=0)",
                "tl.load(asks + feature % 32, mask=owned, other=0)",
            ),
        ),
    ),
    Fault(
        "weight-gradient-length-without-pruned",
        Kind.WEIGHT_GRADIENT,
        "A pruned first lookup does not count in the length by which dL/dp of MEAN is divided.",
        _EDGE,
        (
            Edit(
                "weight_gradient.py",
                "        length = tl.load(bags.end + bag, mask=named, other=0) - tl.load(bags.begin + bag, mask=named, "
                "other=0)\n",
                "        begin = tl.load(bags.begin + bag, mask=named, other=0)\n"
                "        length = tl.load(bags.end + bag, mask=named, other=0) - begin\n"
                "        length -= (tl.load(indices + begin, mask=named, other=0) < 0).to(length.dtype)\n",
            ),
        ),
        first=("bounds",),
    ),
    Fault(
        "row-gradient-length-without-pruned",
        Kind.MEAN,
        "A pruned first lookup does not count in the length by which row gradients of MEAN are divided.",
        _EDGE,
        (
            Edit(
                "transpose.py",
                "        length = tl.broadcast_to(reciprocal(stop - begin, scale",
                "        pruned = (tl.load(indices + begin, mask=begin < stop, other=0) < 0).to(tl.int64)\n"
                "        length = tl.broadcast_to(reciprocal(stop - begin - pruned, scale",
            ),
        ),
        first=("bounds",),
    ),
)
