"""Source edits of the Triton TBE that make wrong random numbers for stochastic rounding: too few, or shared."""

from __future__ import annotations

from equivcheck.faults import update_calls
from equivcheck.faults.fault import Edit, Fault, Kind, Subtlety

_DRAWN = "random_words(seed, number, element)"
_LOW = "    low = (elements & 0xFFFFFFFF).to(tl.uint32)\n    high = (elements >> 32).to(tl.uint32)\n"


def _elements(numbered: str) -> tuple[Edit, ...]:
    """Random numbers by another number than the element's."""
    return (Edit("optimizers.py", _DRAWN, f"random_words(seed, number, {numbered})"),)


def _period(bits: int) -> tuple[Edit, ...]:
    low = f"    low = (elements & {2**bits - 1:#x}).to(tl.uint32)\n    high = low * 0\n"
    return (Edit("rounding.py", _LOW, low),)


def _fault(name: str, what: str, edits: tuple[Edit, ...]) -> Fault:
    return Fault(name, Kind.STOCHASTIC, what, Subtlety.BITS, edits)


RANDOM: tuple[Fault, ...] = (
    _fault("random-numbers-of-4096-elements", "Random numbers repeat after 4,096 elements.", _period(12)),
    _fault("random-numbers-of-16384-elements", "Random numbers repeat after 16,384 elements.", _period(14)),
    _fault(
        "random-numbers-of-row-pairs",
        "Two rows share their random numbers.",
        _elements("element - (row & 1)[:, None] * dim[:, None]"),
    ),
    _fault(
        "random-numbers-of-neighbours",
        "Two columns next to each other share a random word.",
        _elements("element >> 1"),
    ),
    _fault(
        "random-numbers-mirrored",
        "The right half of a row takes the random numbers of the left, mirrored.",
        _elements(
            "element - column[None, :] + tl.minimum(column[None, :], tl.maximum(dim[:, None] - 1 - column[None, :], 0))"
        ),
    ),
    _fault(
        "random-numbers-of-mirrored-warps",
        "Lanes i and 31 - i take the same random numbers.",
        _elements("tl.minimum(element, element ^ 31)"),
    ),
    _fault(
        "random-numbers-of-128-columns",
        "A row's random numbers begin anew after 128 columns.",
        _elements("element - column[None, :] + (column[None, :] & 127)"),
    ),
    _fault(
        "random-numbers-by-row-plus-column",
        "Random numbers go by row + column: each diagonal shares one.",
        _elements("row[:, None] + column[None, :] + element * 0"),
    ),
    _fault(
        "random-numbers-advance-by-one",
        "A step takes the random numbers of the step before, moved by one element.",
        (Edit("optimizers.py", _DRAWN, "random_words(seed, number * 0, element + number)"),),
    ),
    _fault(
        "random-numbers-of-equal-rows-of-tables",
        "Random numbers go by row in its table and column: tables share them, whatever their widths.",
        (
            update_calls.whole_runs("        drawn = (seed, _row_in_table(runs, tables, run, exists))\n", "drawn"),
            update_calls.long_runs("        drawn = (seed, _row_in_table(runs, tables, run, live))\n", "drawn"),
            Edit(
                "backward.py",
                "@triton.jit\ndef _row_of_run(",
                "@triton.jit\n"
                "def _row_in_table(runs, tables, run, live):\n"
                "    table = tl.load(runs.table + run, mask=live, other=0)\n"
                "    row = tl.load(runs.row + run, mask=live, other=0)\n"
                "    return row - tl.load(tables.row_base + table, mask=live, other=0)\n"
                "\n"
                "\n"
                "@triton.jit\ndef _row_of_run(",
            ),
            Edit(
                "optimizers.py",
                _DRAWN,
                "random_words(seed[0], number, seed[1].to(tl.int64)[:, None] * 65536 + column[None, :] + element * 0)",
            ),
        ),
    ),
    _fault(
        "random-numbers-of-the-value",
        "Random numbers are a hash of what is rounded: equal values are rounded alike, at every seed and step.",
        (
            Edit(
                "optimizers.py",
                _DRAWN,
                "random_words(0, number * 0, element * 0 + result.to(tl.float32).to(tl.int32, bitcast=True))",
            ),
        ),
    ),
    _fault(
        "random-numbers-of-8-bits",
        "Only the upper eight bits of a random word are random.",
        (Edit("rounding.py", "    return word\n", "    return word & 0xFF000000\n"),),
    ),
)
