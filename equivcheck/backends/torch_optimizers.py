"""The contract's optimizers as torch operations on the touched rows, and the rounding of what they return.

Divisors are tensors on the device: torch multiplies by the reciprocal where a CUDA tensor is divided by a number, and
where a number is divided by a tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from equivcheck.case import Decay, Optimizer, OptimizerKind

States = tuple[torch.Tensor, ...]
Number = float | torch.Tensor


class Rule(NamedTuple):
    """Which formula is computed. A compiled step is compiled once for each."""

    kind: OptimizerKind
    decay: Decay
    decays: bool


class Constants(NamedTuple):
    """The formula's numbers: Python's, or fp64 tensors without axes, for which a compiled step is not compiled anew.

    Adam's corrections are 1 - beta^t.
    """

    rate: Number
    eps: Number
    beta1: Number
    beta2: Number
    weight_decay: Number
    correction1: Number
    correction2: Number


def rule(optimizer: Optimizer) -> Rule:
    """The optimizer's formula."""
    return Rule(optimizer.kind, optimizer.decay, optimizer.weight_decay != 0)


def constants(optimizer: Optimizer, rate: float, step: int) -> Constants:
    """The optimizer's numbers at a learning rate and Adam's t."""
    corrections = (1 - optimizer.beta1**step, 1 - optimizer.beta2**step)
    return Constants(rate, optimizer.eps, optimizer.beta1, optimizer.beta2, optimizer.weight_decay, *corrections)


def update(
    by: Rule, c: Constants, weights: torch.Tensor, gradient: torch.Tensor, states: States
) -> tuple[torch.Tensor, States]:
    """New rows and states.

    Parameters
    ----------
    by, c
        The formula and its numbers.
    weights, gradient
        (touched rows, dim), in the type that everything is computed in.
    states
        Momentum 1 and 2 of the touched rows, as many as the optimizer has: (rows, dim), or (rows,) where row-wise.
    """
    match by.kind:
        case OptimizerKind.SGD:
            return weights - c.rate * gradient, ()
        case OptimizerKind.ADAGRAD:
            total = states[0] + gradient * gradient
            return weights - c.rate * gradient / (total.sqrt() + c.eps), (total,)
        case OptimizerKind.ROWWISE_ADAGRAD:
            return _rowwise_adagrad(by, c, weights, gradient, states[0])
        case OptimizerKind.ADAM | OptimizerKind.PARTIAL_ROWWISE_ADAM:
            return _adam(by, c, weights, gradient, states)


def _rowwise_adagrad(
    by: Rule, c: Constants, weights: torch.Tensor, gradient: torch.Tensor, total: torch.Tensor
) -> tuple[torch.Tensor, States]:
    entering = gradient + c.weight_decay * weights if by.decay is Decay.L2 else gradient
    total = total + _mean_square(entering)
    multiplier = (_scalar(c.rate, weights) / (total.sqrt() + c.eps))[:, None]
    match by.decay:
        case Decay.NONE:
            return weights - multiplier * gradient, (total,)
        case Decay.L2:
            return (1 - multiplier * c.weight_decay) * weights - multiplier * gradient, (total,)
        case Decay.DECOUPLED:
            kept = 1 - _scalar(c.rate, weights) * c.weight_decay
            return kept * weights - multiplier * gradient, (total,)


def _adam(
    by: Rule, c: Constants, weights: torch.Tensor, gradient: torch.Tensor, states: States
) -> tuple[torch.Tensor, States]:
    rowwise = by.kind is OptimizerKind.PARTIAL_ROWWISE_ADAM
    square = _mean_square(gradient) if rowwise else gradient * gradient
    first = c.beta1 * states[0] + (1 - c.beta1) * gradient
    second = c.beta2 * states[1] + (1 - c.beta2) * square
    unbiased1 = first / _scalar(c.correction1, weights)
    unbiased2 = second / _scalar(c.correction2, weights)
    root = unbiased2.sqrt() + c.eps
    direction = unbiased1 / (root[:, None] if rowwise else root)
    if by.decays:  # zero times an infinite weight would be NaN
        direction = direction + c.weight_decay * weights
    return weights - c.rate * direction, (first, second)


def narrow(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to nearest, ties to even, once.

    torch rounds fp64 to fp32 before it rounds to 16 bits, and twice is not once: fp64 goes through round-to-odd in
    fp32, after which a second rounding is right (Boldo and Melquiond, *Emulation of FMA and correctly rounded sums*,
    IEEE Trans. Computers 57 (2008), theorem 2).
    """
    if values.dtype is not torch.float64 or dtype is torch.float32:
        return values.to(dtype)
    nearest = values.to(torch.float32)
    bits = nearest.view(torch.int32)
    toward_zero = torch.where(nearest.double().abs() > values.abs(), bits - 1, bits)
    inexact = (nearest.double() != values) & values.isfinite()
    return torch.where(inexact, toward_zero | 1, bits).view(torch.float32).to(dtype)


def store(values: torch.Tensor, dtype: torch.dtype, random: torch.Tensor | None) -> torch.Tensor:
    """Round to the storage type: to nearest, or stochastically where random numbers are given and it has 16 bits.

    Between two neighbours of the type, the one farther from zero is taken with the probability of the value's
    distance from the nearer-to-zero one, in units of their difference. Both are exact in fp32, and so is the quotient,
    since the difference is a power of two; the random number is a multiple of 2^-24, so that what lies below it in
    fp16's subnormal range biases by less than that. Beyond the largest number, rounding is to nearest.
    """
    nearest = narrow(values, dtype)
    if random is None or dtype is torch.float32:
        return nearest
    magnitude, rounded = values.abs(), nearest.to(values.dtype).abs()
    bits = nearest.view(torch.int16)  # sign and magnitude: one more or less is the neighbour of the same sign
    lower_bits = torch.where(rounded > magnitude, bits - 1, bits)
    lower, upper = (b.view(dtype).to(values.dtype).abs() for b in (lower_bits, lower_bits + 1))
    fraction = (magnitude - lower) / (upper - lower)
    chosen = torch.where(random < fraction, lower_bits + 1, lower_bits).view(dtype)
    return torch.where(upper.isfinite() & (rounded != magnitude), chosen, nearest)


def _mean_square(gradient: torch.Tensor) -> torch.Tensor:
    return (gradient * gradient).sum(1) / _scalar(gradient.shape[1], gradient)


def _scalar(value: Number, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(like)
    return torch.full((), value, dtype=like.dtype, device=like.device)
