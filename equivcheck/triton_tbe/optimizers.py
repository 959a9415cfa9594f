"""The optimizers: one update of each row from the sum of its gradients.

The kernels of short, middle and long runs all end in `update_rows`; no formula stands anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from equivcheck.case import Decay, OptimizerKind

from .rounding import quotient, random_words, root, to_nearest, to_neighbour, widened

SGD = tl.constexpr(0)
ROWWISE_ADAGRAD = tl.constexpr(1)
ADAGRAD = tl.constexpr(2)
ADAM = tl.constexpr(3)
PARTIAL_ROWWISE_ADAM = tl.constexpr(4)
OPTIMIZERS = {
    OptimizerKind.SGD: SGD,
    OptimizerKind.ROWWISE_ADAGRAD: ROWWISE_ADAGRAD,
    OptimizerKind.ADAGRAD: ADAGRAD,
    OptimizerKind.ADAM: ADAM,
    OptimizerKind.PARTIAL_ROWWISE_ADAM: PARTIAL_ROWWISE_ADAM,
}
NO_DECAY = tl.constexpr(0)
L2 = tl.constexpr(1)
DECOUPLED = tl.constexpr(2)
DECAYS = {Decay.NONE: NO_DECAY, Decay.L2: L2, Decay.DECOUPLED: DECOUPLED}


class State(NamedTuple):
    """As kernels take it: the flat buffers of all tables and of their optimizer state."""

    weights: Tensor
    momentum1: Tensor | None
    momentum2: Tensor | None


class Hyper(NamedTuple):
    """As kernels take it: hyper-parameters of one update, in fp32.

    `correction1` and `correction2` are Adam's 1 - beta^t.
    """

    learning_rate: float
    eps: float
    beta1: float
    beta2: float
    weight_decay: float
    correction1: float
    correction2: float

    @classmethod
    def at(cls, learning_rate: float, eps: float, beta1: float, beta2: float, weight_decay: float, step: int) -> Hyper:
        """Hyper-parameters at step t, 1 at the first update. 1 - beta^t is computed in fp64, then rounded once."""
        return cls(learning_rate, eps, beta1, beta2, weight_decay, 1 - beta1**step, 1 - beta2**step)


@dataclass(frozen=True)
class Rule:
    """Which formula, and how its result is rounded: `seed` and `number` of the update choose the random numbers.

    Adam without decay is `NO_DECAY`, with decay `DECOUPLED`: adding 0 w would make NaN of an infinite w.
    """

    optimizer: tl.constexpr
    decay: tl.constexpr
    stochastic: bool
    seed: int
    number: int


@triton.jit
def current(state, row, element, dim, column, live, WORK: tl.constexpr, OPTIMIZER: tl.constexpr):
    """Weights and moments of the rows to update, as they are: a tuple of three, zero what the optimizer has not.

    To be loaded before gradients are summed: both are then on their way at once.
    """
    inside = live[:, None] & (column[None, :] < dim[:, None])
    places = element[:, None] + column[None, :]
    weight = widened(tl.load(state.weights + places, mask=inside, other=0.0), WORK)
    first = 0.0
    second = 0.0
    if OPTIMIZER == ROWWISE_ADAGRAD:
        first = tl.load(state.momentum1 + row, mask=live, other=0.0).to(WORK)
    elif OPTIMIZER != SGD:
        first = tl.load(state.momentum1 + places, mask=inside, other=0.0).to(WORK)
    if OPTIMIZER == ADAM:
        second = tl.load(state.momentum2 + places, mask=inside, other=0.0).to(WORK)
    elif OPTIMIZER == PARTIAL_ROWWISE_ADAM:
        second = tl.load(state.momentum2 + row, mask=live, other=0.0).to(WORK)
    return weight, first, second


@triton.jit
def update_rows(
    state,
    now,
    hyper,
    seed,
    number,
    total,
    row,
    element,
    dim,
    column,
    live,
    OPTIMIZER: tl.constexpr,
    DECAY: tl.constexpr,
    STOCHASTIC: tl.constexpr,
):
    """Update each live row, of number `row`, first element `element` and `dim` columns, from its gradient G = `total`.

    `total` is (rows, columns), `now` what `current` gave. Arithmetic is fp32, or fp64 where G is accumulated so.
    With lr the learning rate, wd the decay, and mean over a row's columns:

    - SGD: w -= lr G
    - row-wise Adagrad: m += mean(G^2); w -= lr / (sqrt(m) + eps) G. Decay L2: G + wd w enters in both places, written
      w = (1 - mult wd) w - mult G with mult = lr / (sqrt(m) + eps). Decoupled: w = (1 - lr wd) w - mult G.
    - Adagrad: s += G^2; w -= lr G / (sqrt(s) + eps)
    - Adam: m = b1 m + (1 - b1) G; v = b2 v + (1 - b2) G^2;
      w -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd w)
    - partial row-wise Adam: the same with mean(G^2), and v one value a row
    """
    WORK: tl.constexpr = tl.float64 if total.dtype == tl.float64 else tl.float32
    inside = live[:, None] & (column[None, :] < dim[:, None])
    # An infinite per-sample weight makes NaN of the zeros that stand beyond a row's columns.
    gradient = tl.where(inside, total.to(WORK), 0.0)
    element = element[:, None] + column[None, :]
    weight, first, second = now
    if OPTIMIZER == SGD:
        result = weight - hyper.learning_rate * gradient
    elif OPTIMIZER == ROWWISE_ADAGRAD:
        regularised = gradient
        if DECAY == L2:
            regularised = gradient + hyper.weight_decay * weight
        m = first + _mean_square(regularised, dim)
        tl.store(state.momentum1 + row, m.to(tl.float32), mask=live)
        divisor = root(m) + hyper.eps
        rate = quotient(hyper.learning_rate, divisor)[:, None]
        if DECAY == L2:
            weight = (1.0 - rate * hyper.weight_decay) * weight
        elif DECAY == DECOUPLED:
            weight = (1.0 - hyper.learning_rate * hyper.weight_decay) * weight
        result = weight - rate * gradient
    elif OPTIMIZER == ADAGRAD:
        s = first + gradient * gradient
        tl.store(state.momentum1 + element, s.to(tl.float32), mask=inside)
        result = weight - quotient(hyper.learning_rate * gradient, root(s) + hyper.eps)
    else:
        m = first * hyper.beta1 + (1.0 - hyper.beta1) * gradient
        tl.store(state.momentum1 + element, m.to(tl.float32), mask=inside)
        if OPTIMIZER == ADAM:
            v = second * hyper.beta2
            v += (1.0 - hyper.beta2) * (gradient * gradient)
            tl.store(state.momentum2 + element, v.to(tl.float32), mask=inside)
            divisor = root(quotient(v, tl.full((1, 1), hyper.correction2, WORK))) + hyper.eps
        else:
            v = second * hyper.beta2
            v += (1.0 - hyper.beta2) * _mean_square(gradient, dim)
            tl.store(state.momentum2 + row, v.to(tl.float32), mask=live)
            divisor = (root(quotient(v, tl.full((1,), hyper.correction2, WORK))) + hyper.eps)[:, None]
        direction = quotient(quotient(m, tl.full((1, 1), hyper.correction1, WORK)), divisor)
        if DECAY == DECOUPLED:
            direction += hyper.weight_decay * weight
        result = weight - hyper.learning_rate * direction
    if STOCHASTIC:
        stored = to_neighbour(result, random_words(seed, number, element), state.weights.dtype.element_ty)
    else:
        stored = to_nearest(result, state.weights.dtype.element_ty)
    tl.store(state.weights + element, stored, mask=inside)


@triton.jit
def _mean_square(gradient, dim):
    """Mean of G^2 over the columns of each row. Columns outside the row hold zero and add nothing; `dim` counts."""
    return quotient(tl.sum(gradient * gradient, axis=1), tl.maximum(dim, 1).to(gradient.dtype))
