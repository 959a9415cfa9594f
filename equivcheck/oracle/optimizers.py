"""Optimizer updates over intervals of G. The formulas are the contract's; every algebraic form that kernels use is in.

Each function reads like its formula. `ops` rounds every operation (`equivcheck.oracle.roundoff`), and what it returns
also holds the unrounded result, so fused multiply-adds and wider intermediates need no form of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equivcheck.arithmetic import Arithmetic, MeanDivision, Summation
from equivcheck.case import Decay, Optimizer, OptimizerKind
from equivcheck.formats import DType, Float64Array, lowest_bit, nearest, representable
from equivcheck.oracle.roundoff import BoolArray, Fp32Operations, Interval, hull, negated, point, positive, widened
from equivcheck.oracle.sums import power_of_two, row_quantum

_INFO = DType.FP32.info
_U, _ETA = _INFO.unit_roundoff, _INFO.smallest_subnormal


@dataclass(frozen=True)
class Updated:
    """State after the update, before it is stored.

    Attributes
    ----------
    rows, momentum1, momentum2
        Intervals; the moments are None where the optimizer has none. Row-wise moments are (rows, 1).
    undetermined, undetermined1, undetermined2
        Elements that are not judged: an intermediate result may overflow, or a denominator be zero.
    gain
        |change of w| per unit of G, for judging whether a lost term would show.
    """

    rows: Interval
    undetermined: BoolArray
    gain: Float64Array
    momentum1: Interval | None = None
    undetermined1: BoolArray | None = None
    momentum2: Interval | None = None
    undetermined2: BoolArray | None = None


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of one update: the optimizer's, and what depends on the step."""

    optimizer: Optimizer
    learning_rate: float
    step: int


def update(
    hyper: Hyper,
    arithmetic: Arithmetic,
    rows: Float64Array,
    gradient: Interval,
    lost: BoolArray,
    momentum1: Float64Array | None,
    momentum2: Float64Array | None,
) -> Updated:
    """One update of a block of rows.

    Parameters
    ----------
    rows
        (R, D) weights before, in fp64.
    gradient
        (R, D) intervals of G.
    lost
        (R, D) elements whose G is undetermined.
    momentum1, momentum2
        State before: (R, D), or (R, 1) where it is row-wise.
    """
    kind = hyper.optimizer.kind
    # A wider accumulator's G may be rounded to fp32 first. Rounding is monotone, so its ends say how far that moves it.
    if arithmetic.accumulator.info.precision > _INFO.precision:
        narrow = Interval(nearest(gradient.low, DType.FP32), nearest(gradient.high, DType.FP32))
        lost = lost | ((np.maximum(np.abs(gradient.low), np.abs(gradient.high)) > _INFO.maximum) & _finite(gradient))
        gradient = hull(gradient, narrow)
    # Both Adagrads have a root, eps and three orders of lr, d and G, all of which `_step` has. Adam's are more.
    ops = Fp32Operations(
        arithmetic.division,
        arithmetic.square_root,
        arithmetic.optimizer_flushes,
        rows.shape,
        sharp=kind in (OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAGRAD),
    )
    if kind is OptimizerKind.SGD:
        return _sgd(ops, hyper, rows, gradient, lost)
    assert momentum1 is not None
    if kind is OptimizerKind.ROWWISE_ADAGRAD:
        return _rowwise_adagrad(ops, hyper, arithmetic, rows, gradient, lost, momentum1)
    if kind is OptimizerKind.ADAGRAD:
        return _adagrad(ops, hyper, rows, gradient, lost, momentum1)
    assert momentum2 is not None
    return _adam(ops, hyper, arithmetic, rows, gradient, lost, momentum1, momentum2)


def _sgd(ops: Fp32Operations, hyper: Hyper, rows: Float64Array, gradient: Interval, lost: BoolArray) -> Updated:
    """w -= lr G."""
    step = ops.scale(gradient, point(hyper.learning_rate))
    updated = ops.exact_add(point(rows), negated(step))
    return Updated(updated, lost | ops.overflow, np.full(rows.shape, hyper.learning_rate))


def _rowwise_adagrad(
    ops: Fp32Operations,
    hyper: Hyper,
    arithmetic: Arithmetic,
    rows: Float64Array,
    gradient: Interval,
    lost: BoolArray,
    moment: Float64Array,
) -> Updated:
    """m += mean(G^2); w -= lr / (sqrt(m) + eps) G, with decay as the contract has it."""
    optimizer = hyper.optimizer
    decayed = gradient
    if optimizer.decay is Decay.L2:
        decayed = ops.add(gradient, ops.scale(point(rows), point(optimizer.weight_decay)))
    mean = mean_square(ops, decayed, arithmetic.mean_square, arithmetic.mean_division)
    before_rounding = ops.exact_add(point(moment), mean)
    new_moment = ops.rounded(before_rounding)
    lost_row = (lost | ops.overflow).any(axis=1, keepdims=True) | _may_overflow(new_moment)

    denominator = ops.shifted(ops.sqrt(new_moment), point(optimizer.eps))
    multiplier = positive(ops.divide(point(np.full(moment.shape, hyper.learning_rate)), denominator))
    step = _step(ops, gradient, multiplier, denominator, hyper.learning_rate)
    decay = point(optimizer.weight_decay)
    match optimizer.decay:
        case Decay.NONE:
            updated = ops.exact_add(point(rows), negated(step))
        case Decay.L2:
            share = _step(ops, decay, multiplier, denominator, hyper.learning_rate)
            updated = _decayed(ops, rows, share, multiplier, decay, step)
            whole = _step(ops, decayed, multiplier, denominator, hyper.learning_rate)
            updated = hull(updated, ops.exact_add(point(rows), negated(whole)))  # w - mult (G + wd w)
        case Decay.DECOUPLED:
            rate = point(hyper.learning_rate)
            updated = _decayed(ops, rows, ops.scale(rate, decay), rate, decay, step)
    undetermined = lost | ops.overflow | lost_row | (denominator.low <= 0)
    if optimizer.decay is not Decay.NONE:
        undetermined = undetermined | np.isinf(rows)  # (1 - c) w is infinite, w - c w is NaN
    gain = np.broadcast_to(multiplier.low, rows.shape)
    return Updated(updated, undetermined, gain, before_rounding, lost_row)


def _decayed(
    ops: Fp32Operations, rows: Float64Array, share: Interval, rate: Interval, decay: Interval, step: Interval
) -> Interval:
    """(1 - c) w - s with c = `share` = rate * decay; also (w - c w) - s, (w - s) - c w, w - (s + c w).

    c w may be rate * (decay * w). The forms differ by the roundings of their partial sums: u |w| in the first two,
    u |w - s| and u |s + c w| in the others.
    """
    given, one = point(rows), point(1.0)
    taken = hull(ops.multiply(given, share), ops.scale(ops.scale(given, decay), rate))
    factored = ops.exact_add(ops.multiply(given, ops.subtract(one, share)), negated(step))
    first = ops.exact_add(ops.subtract(given, taken), negated(step))
    late = ops.exact_add(ops.subtract(given, step), negated(taken))
    joint = ops.exact_add(given, negated(ops.add(step, taken)))
    return hull(hull(factored, first), hull(late, joint))


def _adagrad(
    ops: Fp32Operations,
    hyper: Hyper,
    rows: Float64Array,
    gradient: Interval,
    lost: BoolArray,
    moment: Float64Array,
) -> Updated:
    """s += G^2; w -= lr G / (sqrt(s) + eps)."""
    square = ops.square(gradient)
    before_rounding = ops.exact_add(point(moment), square)
    new_moment = ops.rounded(before_rounding)
    lost_moment = lost | ops.overflow | _may_overflow(new_moment)
    denominator = ops.shifted(ops.sqrt(new_moment), point(hyper.optimizer.eps))
    multiplier = positive(ops.divide(point(np.full(rows.shape, hyper.learning_rate)), denominator))
    step = _step(ops, gradient, multiplier, denominator, hyper.learning_rate)
    updated = ops.exact_add(point(rows), negated(step))
    undetermined = lost_moment | ops.overflow | (denominator.low <= 0)
    return Updated(updated, undetermined, multiplier.low, before_rounding, lost_moment)


def _adam(
    ops: Fp32Operations,
    hyper: Hyper,
    arithmetic: Arithmetic,
    rows: Float64Array,
    gradient: Interval,
    lost: BoolArray,
    moment1: Float64Array,
    moment2: Float64Array,
) -> Updated:
    """m = b1 m + (1-b1) G; v = b2 v + (1-b2) G^2; w -= lr ((m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps) + wd w).

    Partial row-wise: v has one value a row, from mean(G^2).
    """
    optimizer = hyper.optimizer
    rowwise = optimizer.kind is OptimizerKind.PARTIAL_ROWWISE_ADAM
    one = point(1.0)
    rest1 = ops.subtract(one, point(optimizer.beta1))
    rest2 = ops.subtract(one, point(optimizer.beta2))
    before1, new1 = _averaged(ops, moment1, optimizer.beta1, rest1, gradient, ops.scale(gradient, rest1))
    lost1 = lost | ops.overflow | np.isinf(moment1)

    if rowwise:
        square = mean_square(ops, gradient, arithmetic.mean_square, arithmetic.mean_division)
        lost_row = lost1.any(axis=1, keepdims=True)
    else:
        square = ops.square(gradient)
        lost_row = lost1
    second = ops.scale(square, rest2)
    if rowwise:
        largest = np.maximum(np.abs(gradient.low), np.abs(gradient.high)).max(axis=1, keepdims=True, initial=0.0)
        # (1-b2) may meet each G before they are summed, and underflow there.
        second = positive(_blurred(second, ops.tiny * np.where(np.isfinite(largest), largest, 0.0)))
    else:  # ((1-b2) G) G rounds twice, even where G G is exact
        second = hull(second, positive(ops.multiply(ops.scale(gradient, rest2), gradient)))
    before2, new2 = (positive(x) for x in _averaged(ops, moment2, optimizer.beta2, rest2, square, second))
    overflow = ops.overflow.any(axis=1, keepdims=True) if rowwise else ops.overflow
    lost2 = lost_row | overflow | _may_overflow(new2) | np.isinf(moment2)

    correction1 = bias_correction(ops, optimizer.beta1, hyper.step, arithmetic.power)
    correction2 = bias_correction(ops, optimizer.beta2, hyper.step, arithmetic.power)
    # sqrt(v / c) is also sqrt(v) / sqrt(c), with a root more.
    root = hull(ops.sqrt(ops.divide(new2, correction2)), ops.divide(ops.sqrt(new2), ops.sqrt(correction2)))
    denominator = ops.add(root, point(optimizer.eps))
    unbiased = ops.divide(new1, correction1)
    direction = ops.divide(unbiased, denominator)
    rate, given = point(hyper.learning_rate), point(rows)
    step = ops.scale(direction, rate)
    if (direction.low == direction.high).any():  # the other forms round where this one happens to be exact
        step = hull(step, ops.scale(unbiased, ops.divide(rate, denominator)))
        step = hull(step, ops.divide(ops.scale(new1, ops.divide(rate, correction1)), denominator))
    # lr/c m / d, (lr m/c) / d, (lr/d) m/c and (m/d) lr/c underflow, and overflow, elsewhere.
    with np.errstate(divide="ignore", invalid="ignore"):
        least, size = np.maximum(denominator.low, _ETA), np.maximum(np.abs(unbiased.low), np.abs(unbiased.high))
        scale = hyper.learning_rate / np.maximum(correction1.low, _ETA)
        elsewhere = ops.tiny * (1 + hyper.learning_rate + scale + size) * (1 + 1 / least)
        for other in (scale, hyper.learning_rate / least, hyper.learning_rate * size):
            ops.note(other)
    step = _blurred(step, np.where(np.isfinite(elsewhere), elsewhere, 0.0))
    if optimizer.weight_decay:
        decay = point(optimizer.weight_decay)
        inner = ops.scale(ops.add(direction, ops.scale(given, decay)), rate)
        updated = hull(
            _decayed(ops, rows, ops.scale(rate, decay), rate, decay, step), ops.exact_add(given, negated(inner))
        )
    else:
        updated = ops.exact_add(given, negated(step))
    undetermined = lost1 | lost2 | ops.overflow | (denominator.low <= 0)
    undetermined = undetermined | (correction1.low <= 0) | (correction2.low <= 0)
    # (1 - c) w is infinite, w - c w is NaN; and the formula multiplies the row even by a decay of zero.
    undetermined = undetermined | np.isinf(rows)
    gain = hyper.learning_rate * rest1.low / np.maximum(correction1.high * denominator.high, _ETA)
    # torch.lerp, which PyTorch's own Adam uses, is G - b1 (G - m) where b1 is at most 1/2: NaN where G is infinite.
    unclear1 = lost1 | (~_finite(gradient) & (optimizer.beta1 <= 0.5))
    return Updated(updated, undetermined, np.broadcast_to(gain, rows.shape), before1, unclear1, before2, lost2)


def _averaged(
    ops: Fp32Operations, moment: Float64Array, beta: float, rest: Interval, x: Interval, share: Interval
) -> tuple[Interval, Interval]:
    """b m + (1 - b) x, where `share` is (1 - b) x; also m + (1 - b) (x - m). Before its rounding, and after."""
    kept, given = ops.scale(point(moment), point(beta)), point(moment)
    moved = ops.scale(ops.subtract(x, given), rest)
    sums = ops.exact_add(kept, share), ops.exact_add(given, moved)
    return hull(*sums), hull(ops.rounded(sums[0]), ops.rounded(sums[1]))


def bias_correction(ops: Fp32Operations, beta: float, step: int, power: float) -> Interval:
    """1 - beta^t. The declared error of pow is amplified by beta^t / (1 - beta^t); t itself may be rounded to fp32."""
    exponent = np.asarray([float(step), float(np.float32(step))])
    raised = np.power(beta, exponent)
    low, high = raised.min(), raised.max()
    # fp64's own pow is good to an ulp, 2^-52: the oracle's, and the kernel's where `power` is as small as that.
    relative = power * _U + 2.0**-52
    interval = point(0.0) if beta == 0 else widened(Interval(np.asarray(low), np.asarray(high)), relative, _ETA)
    if step == 1 and power == 0:
        interval = point(beta)
    return positive(ops.subtract(point(1.0), interval))


def mean_square(ops: Fp32Operations, values: Interval, summation: Summation, division: MeanDivision) -> Interval:
    """Mean over the columns of the squares, (R, 1). All terms are positive, so every error is relative."""
    columns = values.low.shape[1]
    squares = ops.square(values)
    terms = np.asarray([columns], np.int64)
    relative = float(summation.error(terms)[0])
    exact_division = bool(power_of_two(terms)[0])
    relative += 0.0 if exact_division else division.roundings * _U
    low, high = squares.low.sum(axis=1, keepdims=True), squares.high.sum(axis=1, keepdims=True)
    ops.note(high * (1 + relative))  # the sum may overflow before it is divided
    least = _INFO.smallest_normal if ops.flushes else _ETA
    # G^2 / D may be summed instead: each of D quotients then underflows, where that of the sum underflows once.
    lost = columns * ops.tiny
    blurred = widened(
        Interval(low / columns, high / columns), relative * (1 + 2.0**-9) + (columns + 4) * 2.0**-53, lost
    )
    # Exact where G is, and its squares stay on their grid: G^2 are multiples of q^2 with sum up to 2^24 q^2.
    quantum = row_quantum(values.low)[:, None] ** 2
    exact = (values.low == values.high).all(axis=1, keepdims=True) & exact_division
    exact &= (high <= quantum * summation.exact_units) & (quantum >= least) & (quantum / columns >= least)
    exact &= representable(high, DType.FP32)
    mean = high / columns
    return positive(Interval(np.where(exact, mean, blurred.low), np.where(exact, mean, blurred.high)))


def _step(
    ops: Fp32Operations, gradient: Interval, multiplier: Interval, denominator: Interval, rate: float
) -> Interval:
    """(lr / d) G, which is also (lr G) / d and lr (G / d): they differ in what they round, and where they underflow."""
    factor = point(rate)
    step = hull(ops.scale(gradient, multiplier), ops.divide(ops.scale(gradient, factor), denominator))
    step = hull(step, ops.scale(ops.divide(gradient, denominator), factor))
    largest = np.maximum(np.abs(gradient.low), np.abs(gradient.high))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        quotient, product = largest / denominator.low, rate * largest
        ops.note(quotient)
        ops.note(product)
        elsewhere = ops.tiny * (rate + largest + 1 / denominator.low)
    blurred = _blurred(step, np.where(np.isfinite(elsewhere), elsewhere, 0.0))
    # All forms are exact where one is and d only moves the exponent, if that stays in range: lr (G / 7) is not.
    small = _INFO.smallest_normal
    shifted = (denominator.low == denominator.high) & (lowest_bit(denominator.low) == denominator.low)
    normal = (np.abs(step.low) >= small) & (quotient >= small) & (product >= small)
    known = (step.low == step.high) & ((shifted & normal) | (step.low == 0))
    return Interval(np.where(known, step.low, blurred.low), np.where(known, step.high, blurred.high))


def _blurred(interval: Interval, absolute: Float64Array | float) -> Interval:
    return widened(interval, 0.0, absolute)


def _finite(interval: Interval) -> BoolArray:
    return np.isfinite(interval.low) & np.isfinite(interval.high)


def _may_overflow(interval: Interval) -> BoolArray:
    """Whether the upper end passes fp32's largest number while the lower is finite: some kernels then hold infinity."""
    return np.asarray((interval.high > _INFO.maximum) & np.isfinite(interval.low))
