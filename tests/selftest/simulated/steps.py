"""Optimizer updates as real kernels write them: the contract's formulas in every algebraically equal form."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np

from equivcheck.arithmetic import MeanDivision
from equivcheck.case import Decay, Optimizer, OptimizerKind
from equivcheck.formats import Float64Array
from tests.selftest.simulated.machine import Machine
from tests.selftest.simulated.sums import Adder


class StepForm(enum.Enum):
    """lr G / d."""

    MULTIPLIER = "(lr / d) G"
    NUMERATOR = "(lr G) / d"
    QUOTIENT = "lr (G / d)"


class DecayForm(enum.Enum):
    """Where decay and step are taken off."""

    FACTOR = "(1 - c) w - s"
    SUBTRACTED = "(w - c w) - s"
    LATE = "(w - s) - c w"
    JOINT = "w - (s + c w), of L2: w - mult (G + wd w)"


class MomentForm(enum.Enum):
    """A moving average."""

    WEIGHTED = "b m + (1 - b) x"
    LERP = "m + (1 - b) (x - m)"


class SquareForm(enum.Enum):
    """(1 - b) G^2."""

    SQUARE = "(1 - b) (G G)"
    FACTOR = "((1 - b) G) G"


class MeanSquareForm(enum.Enum):
    """Mean of G^2 over the columns."""

    LAST = "sum(G^2) / D"
    FIRST = "sum(G^2 / D)"


class CorrectionForm(enum.Enum):
    """Adam's direction, lr included."""

    MOMENTS = "lr ((m / c1) / (sqrt(v / c2) + eps))"
    STEP_SIZE = "((lr / c1) m) / (sqrt(v) / sqrt(c2) + eps)"
    RATE_LAST = "(lr / d) (m / c1)"


def mean_of(machine: Machine, division: MeanDivision, total: Float64Array, count: int) -> Float64Array:
    """Values divided by a count. Where a division is approximate, it is exact by powers of two, as hardware's is."""
    divisor = np.asarray(float(count))
    if division is MeanDivision.RECIPROCAL:
        return machine.multiply(total, machine.divide(np.asarray(1.0), divisor))
    if division is MeanDivision.APPROXIMATE and count & (count - 1):
        machine = replace(machine, division=division.roundings)
    return machine.divide(total, divisor)


@dataclass(frozen=True)
class Forms:
    """One kernel's choice of forms."""

    step: StepForm = StepForm.MULTIPLIER
    decay: DecayForm = DecayForm.FACTOR
    moment: MomentForm = MomentForm.WEIGHTED
    square: SquareForm = SquareForm.SQUARE
    correction: CorrectionForm = CorrectionForm.MOMENTS
    mean_square: MeanSquareForm = MeanSquareForm.LAST


@dataclass(frozen=True)
class State:
    """Rows (R, D) and moments, (R, D) or (R, 1)."""

    rows: Float64Array
    momentum1: Float64Array | None = None
    momentum2: Float64Array | None = None


@dataclass(frozen=True)
class Updater:
    """Updates rows with their gradients."""

    machine: Machine
    adder: Adder
    forms: Forms = Forms()
    division: MeanDivision = MeanDivision.DIVISION

    def update(self, optimizer: Optimizer, rate: float, step: int, state: State, gradient: Float64Array) -> State:
        """State after one update; rows before they are stored, but rounded to the machine's type."""
        with np.errstate(all="ignore"):
            match optimizer.kind:
                case OptimizerKind.SGD:
                    return State(self.machine.multiply_add(np.asarray(-rate), gradient, state.rows))
                case OptimizerKind.ROWWISE_ADAGRAD:
                    return self._rowwise_adagrad(optimizer, rate, state, gradient)
                case OptimizerKind.ADAGRAD:
                    assert state.momentum1 is not None
                    total = self.machine.multiply_add(gradient, gradient, state.momentum1)
                    divisor = self.divisor(total, optimizer.eps)
                    return State(self.stepped(state.rows, gradient, rate, divisor), total)
                case OptimizerKind.ADAM | OptimizerKind.PARTIAL_ROWWISE_ADAM:
                    return self._adam(optimizer, rate, step, state, gradient)

    def divisor(self, moment: Float64Array, eps: float) -> Float64Array:
        """Denominator sqrt(m) + eps."""
        return self.machine.add(self.machine.sqrt(moment), np.asarray(eps))

    def mean_square(self, values: Float64Array) -> Float64Array:
        """Mean over the columns of the squares, (R, 1)."""
        columns = values.shape[1]
        if self.forms.mean_square is MeanSquareForm.FIRST:
            squares = self.machine.multiply(values, values)
            return self.adder.products(mean_of(self.adder.machine, self.division, squares, columns).T, None)[:, None]
        total = self.adder.products(values.T, values.T)[:, None]
        return mean_of(self.adder.machine, self.division, total, columns)

    def step(self, gradient: Float64Array, rate: float, divisor: Float64Array) -> Float64Array:
        """Step lr G / d."""
        machine, lr = self.machine, np.asarray(rate)
        match self.forms.step:
            case StepForm.MULTIPLIER:
                return machine.multiply(machine.divide(lr, divisor), gradient)
            case StepForm.NUMERATOR:
                return machine.divide(machine.multiply(lr, gradient), divisor)
            case StepForm.QUOTIENT:
                return machine.multiply(lr, machine.divide(gradient, divisor))

    def stepped(self, rows: Float64Array, gradient: Float64Array, rate: float, divisor: Float64Array) -> Float64Array:
        """Difference w - lr G / d, its last product fused where the machine fuses."""
        machine, lr = self.machine, np.asarray(rate)
        match self.forms.step:
            case StepForm.MULTIPLIER:
                return machine.multiply_add(-machine.divide(lr, divisor), gradient, rows)
            case StepForm.NUMERATOR:
                return machine.subtract(rows, machine.divide(machine.multiply(lr, gradient), divisor))
            case StepForm.QUOTIENT:
                return machine.multiply_add(-lr, machine.divide(gradient, divisor), rows)

    def _rowwise_adagrad(self, optimizer: Optimizer, rate: float, state: State, gradient: Float64Array) -> State:
        assert state.momentum1 is not None
        machine, rows, decay = self.machine, state.rows, np.asarray(optimizer.weight_decay)
        entering = machine.multiply_add(decay, rows, gradient) if optimizer.decay is Decay.L2 else gradient
        moment = machine.add(state.momentum1, self.mean_square(entering))
        divisor = self.divisor(moment, optimizer.eps)
        if optimizer.decay is Decay.NONE:
            return State(self.stepped(rows, gradient, rate, divisor), moment)
        if self.forms.decay is DecayForm.JOINT and optimizer.decay is Decay.L2:
            return State(self.stepped(rows, entering, rate, divisor), moment)
        if optimizer.decay is Decay.L2:
            share = machine.multiply(machine.divide(np.asarray(rate), divisor), decay)
        else:
            share = machine.multiply(np.asarray(rate), decay)
        return State(self.decayed(rows, share, self.step(gradient, rate, divisor)), moment)

    def decayed(self, rows: Float64Array, share: Float64Array, step: Float64Array) -> Float64Array:
        """Difference (1 - share) rows - step."""
        machine = self.machine
        match self.forms.decay:
            case DecayForm.FACTOR:
                return machine.multiply_add(machine.subtract(np.asarray(1.0), share), rows, -step)
            case DecayForm.SUBTRACTED:
                return machine.subtract(machine.multiply_add(-share, rows, rows), step)
            case DecayForm.LATE:
                return machine.multiply_add(-share, rows, machine.subtract(rows, step))
            case DecayForm.JOINT:
                return machine.subtract(rows, machine.multiply_add(share, rows, step))

    def averaged(self, moment: Float64Array, beta: float, x: Float64Array) -> Float64Array:
        """Moving average b m + (1 - b) x."""
        machine, b = self.machine, np.asarray(beta)
        rest = machine.subtract(np.asarray(1.0), b)
        if self.forms.moment is MomentForm.LERP:
            return machine.multiply_add(rest, machine.subtract(x, moment), moment)
        return machine.multiply_add(b, moment, machine.multiply(rest, x))

    def _averaged_square(self, moment: Float64Array, beta: float, gradient: Float64Array) -> Float64Array:
        machine, b = self.machine, np.asarray(beta)
        rest = machine.subtract(np.asarray(1.0), b)
        if self.forms.square is SquareForm.FACTOR:
            return machine.multiply_add(machine.multiply(rest, gradient), gradient, machine.multiply(b, moment))
        return self.averaged(moment, beta, machine.multiply(gradient, gradient))

    def _adam(self, optimizer: Optimizer, rate: float, step: int, state: State, gradient: Float64Array) -> State:
        assert state.momentum1 is not None
        assert state.momentum2 is not None
        machine, lr = self.machine, np.asarray(rate)
        first = self.averaged(state.momentum1, optimizer.beta1, gradient)
        if optimizer.kind is OptimizerKind.ADAM:
            second = self._averaged_square(state.momentum2, optimizer.beta2, gradient)
        else:
            second = self.averaged(state.momentum2, optimizer.beta2, self.mean_square(gradient))
        one, eps = np.asarray(1.0), np.asarray(optimizer.eps)
        c1 = machine.subtract(one, machine.pow(optimizer.beta1, step))
        c2 = machine.subtract(one, machine.pow(optimizer.beta2, step))
        match self.forms.correction:
            case CorrectionForm.MOMENTS:
                divisor = self.divisor(machine.divide(second, c2), optimizer.eps)
                direction = machine.divide(machine.divide(first, c1), divisor)
                if optimizer.weight_decay and self.forms.decay is DecayForm.JOINT:
                    inner = machine.multiply_add(np.asarray(optimizer.weight_decay), state.rows, direction)
                    return State(machine.multiply_add(-lr, inner, state.rows), first, second)
                change = machine.multiply(lr, direction)
            case CorrectionForm.STEP_SIZE:
                divisor = machine.add(machine.divide(machine.sqrt(second), machine.sqrt(c2)), eps)
                change = machine.divide(machine.multiply(machine.divide(lr, c1), first), divisor)
            case CorrectionForm.RATE_LAST:
                divisor = self.divisor(machine.divide(second, c2), optimizer.eps)
                change = machine.multiply(machine.divide(lr, divisor), machine.divide(first, c1))
        if not optimizer.weight_decay:
            return State(machine.subtract(state.rows, change), first, second)
        share = machine.multiply(lr, np.asarray(optimizer.weight_decay))
        return State(self.decayed(state.rows, share, change), first, second)
