"""Source edits of the two calls by which the Triton TBE's backward updates rows: of whole runs and of long ones."""

from __future__ import annotations

from equivcheck.faults.fault import Edit

_BEHIND = '        )\n\n\n@triton.jit(do_not_specialize=["lists", "count"])'
"""What tells the call for short and middle runs from the other."""
_SUMMED = "        total = tl.sum(sums, axis=1)\n"
"""What tells the call for long runs."""


def whole_runs(before: str = "", seed: str = "seed", stochastic: str = "STOCHASTIC") -> Edit:
    """Of short and middle runs: a line before the call, and other arguments."""

    def call(seed: str, stochastic: str) -> str:
        return (
            f"        update_rows(\n            state, now, hyper, {seed}, number, total, row, element, dim, "
            f"column, live, OPTIMIZER, DECAY, {stochastic}\n{_BEHIND}"
        )

    return Edit("backward.py", call("seed", "STOCHASTIC"), before + call(seed, stochastic))


def long_runs(before: str = "", seed: str = "seed", number: str = "number") -> Edit:
    """Of long runs."""

    def call(seed: str, number: str) -> str:
        return f"        update_rows(\n            state, now, hyper, {seed}, {number}, total"

    return Edit("backward.py", _SUMMED + call("seed", "number"), _SUMMED + before + call(seed, number))
