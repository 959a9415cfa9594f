"""Subject and witness at full size: outputs and updated rows of the first batch, from the same tables.

The verdict is the oracle's, on the sibling. What only happens at full size (numbers beyond 2^31, another path for
another size) shows here: both sum a bag of at most L products |p w| <= a in fp32, in some order, with an error of at
most gamma_L L a each, gamma_L = L u / (1 - L u), u = 2^-24 (Higham, *Accuracy and Stability of Numerical Algorithms*,
2nd ed., (4.4)), and each rounds the sum, at most L a, to the output's type once. The products round too, which is one
operation more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from equivcheck.bench.point import Setting
from equivcheck.bench.result import Agreement
from equivcheck.formats import DType

LARGEST_WEIGHT = 2.0**-6
"""a: tables are filled uniformly from [-a, a)."""


@dataclass(frozen=True)
class Results:
    """Of the first batch: the output, and a sample of the updated rows of each table."""

    output: torch.Tensor
    rows: tuple[torch.Tensor, ...]


def compare(subject: Results, witness: Results, setting: Setting, longest_bag: int) -> Agreement:
    """How far two systems agree."""
    difference = (subject.output.float() - witness.output.float()).abs()
    largest = float(difference.max()) if difference.numel() else 0.0
    bound = output_bound(setting, longest_bag)
    return Agreement(_equal([subject.output], [witness.output]), _equal(subject.rows, witness.rows), largest, bound)


def output_bound(setting: Setting, longest_bag: int) -> float:
    """Largest difference of two right outputs; see the module's docstring."""
    operations = longest_bag + 1
    unit = DType.FP32.info.unit_roundoff
    gamma = operations * unit / (1 - operations * unit)
    return 2 * (gamma + setting.output.info.unit_roundoff) * longest_bag * LARGEST_WEIGHT


def _equal(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> float:
    """Share of equal elements; a NaN equals nothing."""
    total = sum(part.numel() for part in first)
    same = sum(int((one == other).sum()) for one, other in zip(first, second, strict=True))
    return same / total if total else 1.0
