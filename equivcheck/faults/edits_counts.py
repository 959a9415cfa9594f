"""Source edits of the Triton TBE that count too little: bits of a feature's number, and pruned lookups of a mean."""

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


COUNTS: tuple[Fault, ...] = (
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
