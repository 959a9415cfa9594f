"""What fills the arrays of a case: recipes, which are values and hyper-parameters that belong together.

Each field of a `Data` lists options, the simplest first; a case draws one of each. Hyper-parameters are exact in fp32.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np

from equivcheck.case import Regime, Values


class Recipe(enum.Enum):
    """A family of values. EXACT comes first: small integers read best in a shrunk case."""

    EXACT = "exact"
    SMOOTH = "smooth"
    REVEALING = "revealing"
    SQUARES = "squares"
    CANCELLING = "cancelling"
    TINY = "tiny"
    SUBNORMAL = "subnormal"
    OVERFLOW = "overflow"
    ANY = "any"
    ROOTS = "roots"
    STILL = "still"

    @property
    def data(self) -> Data:
        """Options of this recipe."""
        return _DATA[self]


@dataclass(frozen=True)
class Data:
    """Options for values and hyper-parameters.

    Attributes
    ----------
    exact
        Whether the sums are meant to be exact in every order: bags of MEAN then get lengths that are powers of two.
    most_lookups
        Lookups of a batch up to which they are.
    least_dim
        Width from which the recipe shows what it is for.
    """

    weights: tuple[Values, ...]
    gradient: tuple[Values, ...]
    per_sample_weights: tuple[Values, ...]
    state: tuple[Values, ...]
    learning_rates: tuple[float, ...]
    eps: tuple[float, ...]
    exact: bool = False
    most_lookups: int = 2**31
    least_dim: int = 1


def fp32(value: float) -> float:
    """The nearest value that fp32 holds."""
    return float(np.float32(value))


def _values(
    regime: Regime, magnitudes: tuple[int, ...] = (1,), exponents: tuple[int, ...] = (0,)
) -> tuple[Values, ...]:
    return tuple(Values(regime, magnitude, exponent) for exponent in exponents for magnitude in magnitudes)


POWERS_OF_TWO = (0.5, 1.0, 0.25, 2.0, 2.0**-7, 0.0)
LEARNING_RATES = (*POWERS_OF_TWO, fp32(0.1), fp32(0.01), 2.0**-24, 100.0)
EPS = (0.0, 2.0**-27, 2.0**-3, 1.0, fp32(1e-8))
BETAS1 = (0.875, fp32(0.9), 0.5, 0.0)
BETAS2 = (0.984375, fp32(0.999), fp32(0.99), 0.5)
WEIGHT_DECAYS = (0.125, fp32(0.01), 2.0**-20, 1.0)

_ZEROS = _values(Regime.ZEROS)
_INTEGERS = _values(Regime.INTEGERS, (1, 2, 4, 8), (0, -3))
_SIGNS = _values(Regime.SIGNS)
_SMOOTH = (
    *_values(Regime.UNIFORM, (1, 3), (0, -4, 5)),
    *_values(Regime.NORMAL, (1,), (0, -6)),
    *_values(Regime.SAME_SIGN, (1,), (0, 3)),
)
_EXTREME = (
    *_values(Regime.WIDE),
    *_values(Regime.OUTLIER),
    *_values(Regime.SUBNORMAL),
    *_values(Regime.ZEROS),
    *_values(Regime.NEAR_OVERFLOW),
    *_values(Regime.MIXED),
    *_values(Regime.CONSTANT, (1, 3), (0, -10, 20, -80, 100)),
    *_values(Regime.UNIFORM, (1,), (-20, -60, 60)),
)
_TINY = _values(Regime.CONSTANT, exponents=tuple(range(-10, -26, -1)))
_EXACT = Data(
    weights=_INTEGERS,
    gradient=_INTEGERS,
    per_sample_weights=(*_INTEGERS, *_SIGNS, *_values(Regime.CONSTANT, (1, 2))),
    state=(*_ZEROS, *_values(Regime.INTEGERS, (1, 8))),
    learning_rates=POWERS_OF_TWO,
    eps=EPS,
    exact=True,
)
# fp32's revealing values have 12 bits, so that 2^(24-12) terms add exactly; 16-bit types have fewer.
_REVEALING = replace(
    _EXACT,
    weights=(*_values(Regime.REVEALING, exponents=(0, -8)),),
    gradient=(*_values(Regime.REVEALING, exponents=(0, -8)), *_SIGNS),
    per_sample_weights=_SIGNS,
    state=_ZEROS,
    most_lookups=2**12,
    least_dim=4,
)
_ANYTHING = (
    *_INTEGERS,
    *_SIGNS,
    *_SMOOTH,
    *_EXTREME,
    *_TINY[::5],
    *_values(Regime.REVEALING),
    *_values(Regime.CANCELLING),
)
_DATA = {
    Recipe.EXACT: _EXACT,
    Recipe.SMOOTH: Data(
        weights=_SMOOTH,
        gradient=_SMOOTH,
        per_sample_weights=_SMOOTH,
        state=(*_ZEROS, *_values(Regime.SAME_SIGN, (1,), (0, -6, 4)), *_values(Regime.UNIFORM)),
        learning_rates=LEARNING_RATES,
        eps=EPS,
    ),
    Recipe.REVEALING: _REVEALING,
    # sqrt(3 + 1) = 2: a single lookup with a gradient of +-1 moves a row by half the learning rate, exactly.
    Recipe.SQUARES: replace(
        _EXACT, gradient=_SIGNS, per_sample_weights=_SIGNS, state=_values(Regime.CONSTANT, (3,)), eps=(0.0,)
    ),
    Recipe.CANCELLING: replace(
        _EXACT,
        weights=(*_values(Regime.CANCELLING), *_INTEGERS),
        gradient=(*_values(Regime.CANCELLING), *_INTEGERS),
        per_sample_weights=_SIGNS,
    ),
    # Sums of squares are exact, and most are no squares: a row of zeros becomes a quotient by a root, and nothing
    # larger hides their last bits. A last bit counts most where the root, or its reciprocal, is just above a power of
    # two: with sums near 4^k, on both sides.
    Recipe.ROOTS: replace(
        _EXACT,
        weights=_ZEROS,
        gradient=_values(Regime.INTEGERS, (8, 100)),
        per_sample_weights=_SIGNS,
        state=(
            *_values(Regime.INTEGERS, (8,)),
            *_values(Regime.CONSTANT, (1,), (4, 10, 14)),
            Values(Regime.CONSTANT, 1000),
        ),
        learning_rates=POWERS_OF_TWO[:-1],
        eps=(0.0, 2.0**-80),
    ),
    # No row has a gradient, but decay and moments move it all the same.
    Recipe.STILL: replace(_EXACT, gradient=_ZEROS, state=_values(Regime.INTEGERS, (1, 8)), eps=EPS[1:]),
    # With eps and the state far below g^2, a kernel that squares in 16 bits or flushes has nothing to hide behind.
    Recipe.TINY: Data(
        weights=(*_INTEGERS, *_SMOOTH),
        gradient=_TINY,
        per_sample_weights=(*_SIGNS, *_SMOOTH),
        state=_ZEROS,
        learning_rates=LEARNING_RATES,
        eps=(2.0**-80, 2.0**-60, 2.0**-40, 0.0),
    ),
    # Sums and differences of subnormal numbers are exact: what flushes them anywhere on the way is seen to the bit.
    Recipe.SUBNORMAL: replace(
        _EXACT,
        weights=_values(Regime.SUBNORMAL),
        gradient=(*_values(Regime.SUBNORMAL), *_values(Regime.INTEGERS, (1, 8), (-149,)), *_values(Regime.INTEGERS)),
        per_sample_weights=(*_SIGNS, *_values(Regime.INTEGERS, (1, 4))),
        state=_ZEROS,
        learning_rates=(1.0, 2.0),
        eps=(1.0, 2.0**-80),
    ),
    # Two of the largest overflow fp16, in an output or a weight's gradient; a row alone does not, nor does fp32.
    # 1023 * 2^118 is finite in fp32, and closer to bf16's infinity than to its largest number.
    Recipe.OVERFLOW: replace(
        _EXACT, weights=(*_values(Regime.INTEGERS, (8,), (12,)), *_values(Regime.CONSTANT, (1023,), (118,)))
    ),
    Recipe.ANY: Data(
        weights=_ANYTHING,
        gradient=_ANYTHING,
        per_sample_weights=_ANYTHING,
        state=(*_ZEROS, *_ANYTHING),
        learning_rates=LEARNING_RATES,
        eps=EPS,
    ),
}
