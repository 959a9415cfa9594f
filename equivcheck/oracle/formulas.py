"""The optimizers' formulas, plainly, in fp64: the values that the intervals of `optimizers` surround."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equivcheck.case import Decay, OptimizerKind
from equivcheck.formats import Float64Array
from equivcheck.oracle.optimizers import Hyper


@dataclass(frozen=True)
class State:
    """Weights (R, D) and moments, (R, D) or (R, 1) where they are row-wise; None where there is none."""

    rows: Float64Array
    momentum1: Float64Array | None = None
    momentum2: Float64Array | None = None


def updated(hyper: Hyper, state: State, gradient: Float64Array) -> State:
    """State after one update with the gradient G of each row (R, D).

    Sources: Duchi, Hazan and Singer 2011 (Adagrad); Kingma and Ba 2015 (Adam, algorithm 1); Loshchilov and Hutter 2019
    (decoupled decay); row-wise variants as in docs/contract.md.
    """
    optimizer, rate = hyper.optimizer, hyper.learning_rate
    with np.errstate(all="ignore"):
        match optimizer.kind:
            case OptimizerKind.SGD:
                return State(state.rows - rate * gradient)
            case OptimizerKind.ROWWISE_ADAGRAD:
                return _rowwise_adagrad(hyper, state, gradient)
            case OptimizerKind.ADAGRAD:
                assert state.momentum1 is not None
                total = state.momentum1 + gradient**2
                return State(state.rows - rate * gradient / (np.sqrt(total) + optimizer.eps), total)
            case OptimizerKind.ADAM | OptimizerKind.PARTIAL_ROWWISE_ADAM:
                return _adam(hyper, state, gradient)


def _rowwise_adagrad(hyper: Hyper, state: State, gradient: Float64Array) -> State:
    assert state.momentum1 is not None
    optimizer, rate = hyper.optimizer, hyper.learning_rate
    decayed = gradient + optimizer.weight_decay * state.rows if optimizer.decay is Decay.L2 else gradient
    moment = state.momentum1 + np.mean(decayed**2, axis=1, keepdims=True)
    multiplier = rate / (np.sqrt(moment) + optimizer.eps)
    match optimizer.decay:
        case Decay.NONE:
            kept = state.rows
        case Decay.L2:
            kept = (1 - multiplier * optimizer.weight_decay) * state.rows
        case Decay.DECOUPLED:
            kept = (1 - rate * optimizer.weight_decay) * state.rows
    return State(kept - multiplier * gradient, moment)


def _adam(hyper: Hyper, state: State, gradient: Float64Array) -> State:
    assert state.momentum1 is not None
    assert state.momentum2 is not None
    optimizer = hyper.optimizer
    square = gradient**2
    if optimizer.kind is OptimizerKind.PARTIAL_ROWWISE_ADAM:
        square = np.mean(square, axis=1, keepdims=True)
    first = optimizer.beta1 * state.momentum1 + (1 - optimizer.beta1) * gradient
    second = optimizer.beta2 * state.momentum2 + (1 - optimizer.beta2) * square
    corrected1 = first / (1 - optimizer.beta1**hyper.step)
    corrected2 = second / (1 - optimizer.beta2**hyper.step)
    direction = corrected1 / (np.sqrt(corrected2) + optimizer.eps)
    decay = optimizer.weight_decay * state.rows if optimizer.weight_decay else 0.0
    return State(state.rows - hyper.learning_rate * (direction + decay), first, second)
