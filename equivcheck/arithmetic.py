"""Arithmetic: what a backend declares about its own rounding. The oracle turns it into bounds.

Declared is what a system does by design, in its documentation or source. What breaks a sentence of the contract is a
finding, even if a bound could be written for it.

u is the unit roundoff: 2^-24 in fp32, 2^-11 in fp16 and TF32, 2^-53 in fp64. An operation that is good to n ulp has a
relative error of 2n u, since one ulp is up to 2u relative.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equivcheck.formats import DType, Float64Array


@dataclass(frozen=True)
class Sequential:
    """Terms added one to another, in any order, by trees, blocks or atomics: n terms take n - 1 additions.

    Jeannerod and Rump, *Improved error bounds for inner products in floating-point arithmetic*, SIAM J. Matrix Anal.
    Appl. 34 (2013): (n - 1) u sum |terms| holds for every order, without a second-order term.
    """

    dtype: DType = DType.FP32

    def error(self, terms: npt.NDArray[np.int64]) -> Float64Array:
        """Bound of the sum's error, relative to the sum of |terms|."""
        return np.asarray(np.maximum(terms - 1, 0) * self.dtype.info.unit_roundoff)

    @property
    def exact_units(self) -> float:
        """Up to which multiple of their common quantum sums are exact in every order."""
        return 1 / self.dtype.info.unit_roundoff


@dataclass(frozen=True)
class Grouped:
    """Groups of at most `group` terms added in the inner type, their sums in the outer.

    The numbers of additions are group - 1 and the number of groups (the accumulator may hold a number before).
    """

    group: int
    inner: DType
    outer: DType

    def error(self, terms: npt.NDArray[np.int64]) -> Float64Array:
        """Bound of the sum's error, relative to the sum of |terms|."""
        first = np.maximum(np.minimum(terms, self.group) - 1, 0) * self.inner.info.unit_roundoff
        second = -(-terms // self.group) * self.outer.info.unit_roundoff
        return np.asarray(first * (1 + first) + second * (1 + second))

    @property
    def exact_units(self) -> float:
        """Up to which multiple of their common quantum sums are exact in every order."""
        return 1 / max(self.inner.info.unit_roundoff, self.outer.info.unit_roundoff)


@dataclass(frozen=True)
class TensorCore:
    """A matrix product on tensor cores: terms are aligned to the largest and truncated, padding to `padded` terms.

    u is 2^-23 (truncation instead of rounding to nearest) and k = K + ceil(K / 16) with K the padded length: Fasi,
    Higham, Mikaitis and Pranesh, *Numerical behavior of NVIDIA tensor cores*, PeerJ Computer Science 7 (2021).
    """

    padded: int

    def error(self, terms: npt.NDArray[np.int64]) -> Float64Array:
        """Bound of the sum's error, relative to the sum of |terms|."""
        padded = -(-np.maximum(terms, 1) // self.padded) * self.padded
        return np.asarray((padded + -(-padded // 16)) * 2.0**-23)

    @property
    def exact_units(self) -> float:
        """Up to which multiple of their common quantum sums are exact in every order."""
        return 2.0**23


Summation = Sequential | Grouped | TensorCore


class StoreRounding(enum.Enum):
    """How a result reaches its storage type."""

    NEAREST = "nearest"
    TRUNCATE = "truncate"
    STOCHASTIC = "stochastic"


@dataclass(frozen=True)
class Store:
    """Rounding into the storage type.

    Attributes
    ----------
    rounding
        Of each value.
    saturates
        Whether values beyond the largest number may become it instead of infinity. What is infinite before the store
        stays so.
    flushes
        Whether subnormal results may become zero.
    """

    rounding: StoreRounding = StoreRounding.NEAREST
    saturates: bool = False
    flushes: bool = False


class MeanDivision(enum.Enum):
    """How MEAN divides by the bag's length: a product with its reciprocal, a division, or CUDA's `div.full`.

    Where the length is a power of two, each of them moves the exponent and rounds nothing, `div.full` on every GPU
    included. A division that rounds there cannot be declared.
    """

    RECIPROCAL = "reciprocal"
    DIVISION = "division"
    APPROXIMATE = "approximate"

    @property
    def roundings(self) -> float:
        """Its relative error in u. `div.full` has 2 ulp (PTX ISA, `div`), and an ulp is up to 2 u."""
        return {MeanDivision.RECIPROCAL: 2.0, MeanDivision.DIVISION: 1.0, MeanDivision.APPROXIMATE: 4.0}[self]


@dataclass(frozen=True)
class Arithmetic:
    """The rounding of one subject on one case.

    Where a subject takes different paths inside a case, each field is the weakest of them. Algebraically equal forms
    of an update need no declaration: the oracle takes the hull over them.

    Attributes
    ----------
    pooling, gradient, weight_gradient, mean_square
        Sums over a bag, over a run, over the columns for dL/dp, and over the columns of G^2.
    accumulator
        Type of products and of scaling: the type in which a single term is rounded.
    mean_division
        How MEAN divides by the bag's length, and row-wise optimizers the sum of G^2 by the width: the weaker of both.
    division, square_root, power
        Relative errors of the optimizer's operations in u of fp32: 1 is correctly rounded. CUDA's `div.full` has 2 ulp
        (4 u), `sqrt.approx` up to 3 ulp (PTX ISA, floating-point instructions); `lr / tensor` in PyTorch is a
        reciprocal and a product (2 u).
    optimizer_flushes, sum_flushes
        Whether subnormal operands and results may become zero, in the update and in sums.
    gradient_rounding
        A narrower type to which each term of the row's gradient is rounded by design, or None.
    output_store, weight_gradient_store, table_store
        Rounding of the output, of dL/dp and of the updated row. A row of 16 bits that the case wants rounded
        stochastically is judged so, whatever `table_store.rounding` says.
    deterministic
        Whether two runs give the same bits.
    """

    pooling: Summation = Sequential()
    gradient: Summation = Sequential()
    weight_gradient: Summation = Sequential()
    mean_square: Summation = Sequential()
    accumulator: DType = DType.FP32
    mean_division: MeanDivision = MeanDivision.RECIPROCAL
    division: float = 1.0
    square_root: float = 1.0
    power: float = 4.0
    optimizer_flushes: bool = False
    sum_flushes: bool = False
    gradient_rounding: DType | None = None
    output_store: Store = Store()
    weight_gradient_store: Store = Store()
    table_store: Store = Store()
    deterministic: bool = True
