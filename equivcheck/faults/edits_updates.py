"""Source edits of the Triton TBE that change updates, roundings, bounds, layouts and calls."""

from __future__ import annotations

from equivcheck.faults import update_calls
from equivcheck.faults.fault import Edit, Fault, Kind, Reach, Subtlety

_FBGEMM = "https://github.com/pytorch/FBGEMM"
_TORCHREC = "https://github.com/meta-pytorch/torchrec"
_GROSS, _EDGE, _FEW, _BITS = Subtlety.GROSS, Subtlety.EDGE, Subtlety.FEW, Subtlety.BITS


def _optimizers(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("optimizers.py", old, new),)


def _rounding(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("rounding.py", old, new),)


def _module(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("module.py", old, new),)


def _bounds(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("bounds.py", old, new),)


def _layout(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("layout.py", old, new),)


_INSIDE = "inside = live[:, None] & (column[None, :] < dim[:, None])\n"
_ELEMENTS = "    # An infinite per-sample weight"
_MEAN_SQUARE = "return quotient(tl.sum(gradient * gradient, axis=1), tl.maximum(dim, 1).to(gradient.dtype))"
_ONE_ULP_OFF = (
    "        bits = result.to(tl.uint32, bitcast=True)\n"
    "        chosen = (bits ^ (bits >> 7) ^ (bits >> 13)) & 7\n"
    "        rounded = result.to(tl.float64) * {0}.to(tl.float64) != {1}\n"
    "        rounded = rounded & (result != 0.0) & (tl.abs(result) < 3e38)\n"
    "        bits = tl.where(rounded & (chosen == 0), bits + 1, tl.where(rounded & (chosen == 1), bits - 1, bits))\n"
    "        result = bits.to(tl.float32, bitcast=True)"
)
"""The neighbour away from zero for an eighth of the inexact results, the one towards zero for another."""

OPTIMIZERS: tuple[Fault, ...] = (
    Fault(
        "eps-inside-the-root",
        Kind.OPTIMIZER,
        "Row-wise Adagrad divides by sqrt(m + eps).",
        _BITS,
        _optimizers("divisor = root(m) + hyper.eps\n", "divisor = root(m + hyper.eps)\n"),
    ),
    Fault(
        "adagrad-eps-inside-the-root",
        Kind.OPTIMIZER,
        "Adagrad divides by sqrt(s + eps).",
        _BITS,
        _optimizers("root(s) + hyper.eps)", "root(s + hyper.eps))"),
    ),
    Fault(
        "adam-without-eps",
        Kind.OPTIMIZER,
        "Adam leaves eps out.",
        _BITS,
        _optimizers(
            "tl.full((1, 1), hyper.correction2, WORK))) + hyper.eps", "tl.full((1, 1), hyper.correction2, WORK)))"
        ),
        first=("steps",),
    ),
    Fault(
        "mean-over-padded-width",
        Kind.OPTIMIZER,
        "mean(G^2) divides by the width rounded up to a power of two.",
        _EDGE,
        _optimizers(
            _MEAN_SQUARE,
            "return quotient(tl.sum(gradient * gradient, axis=1), (dim * 0 + gradient.shape[1]).to(gradient.dtype))",
        ),
    ),
    Fault(
        "sum-of-squares",
        Kind.OPTIMIZER,
        "Row-wise moments take the sum of G^2.",
        _GROSS,
        _optimizers(_MEAN_SQUARE, "return tl.sum(gradient * gradient, axis=1)"),
    ),
    Fault(
        "square-of-mean",
        Kind.OPTIMIZER,
        "Row-wise moments take mean(G)^2.",
        _GROSS,
        _optimizers(
            _MEAN_SQUARE,
            "mean = quotient(tl.sum(gradient, axis=1), tl.maximum(dim, 1).to(gradient.dtype))\n    return mean * mean",
        ),
    ),
    Fault(
        "squares-in-fp16",
        Kind.OPTIMIZER,
        "G^2 is computed in fp16.",
        _BITS,
        _optimizers(
            _MEAN_SQUARE,
            "squares = (gradient.to(tl.float16) * gradient.to(tl.float16)).to(gradient.dtype)\n"
            "    return quotient(tl.sum(squares, axis=1), tl.maximum(dim, 1).to(gradient.dtype))",
        ),
    ),
    Fault(
        "mean-square-of-32-columns",
        Kind.OPTIMIZER,
        "mean(G^2) leaves out columns from 32 on: a reduction within one warp.",
        _EDGE,
        _optimizers(
            "m = first + _mean_square(regularised, dim)",
            "m = first + _mean_square(tl.where(column[None, :] < 32, regularised, 0.0), dim)",
        ),
        report=f"{_FBGEMM}/pull/2509",
    ),
    Fault(
        "decay-not-in-the-moment",
        Kind.OPTIMIZER,
        "L2 decay does not enter mean(G^2).",
        _EDGE,
        _optimizers("_mean_square(regularised, dim)", "_mean_square(gradient, dim)"),
        report=f"{_FBGEMM}/pull/5908",
    ),
    Fault(
        "decoupled-decay-by-multiplier",
        Kind.OPTIMIZER,
        "Decoupled decay is scaled like the step.",
        _EDGE,
        _optimizers(
            "weight = (1.0 - hyper.learning_rate * hyper.weight_decay) * weight",
            "weight = (1.0 - rate * hyper.weight_decay) * weight",
        ),
    ),
    Fault(
        "decay-by-rate",
        Kind.OPTIMIZER,
        "L2 decay is lr wd w, not mult wd w.",
        _EDGE,
        _optimizers(
            "weight = (1.0 - rate * hyper.weight_decay) * weight",
            "weight = (1.0 - hyper.learning_rate * hyper.weight_decay) * weight",
        ),
        report="https://github.com/flagos-ai/FlagGems/issues/4988",
    ),
    Fault(
        "moment-in-fp16",
        Kind.OPTIMIZER,
        "The row-wise moment is rounded to fp16 when it is stored.",
        _BITS,
        _optimizers(
            "tl.store(state.momentum1 + row, m.to(tl.float32), mask=live)",
            "tl.store(state.momentum1 + row, m.to(tl.float16).to(tl.float32), mask=live)",
        ),
    ),
    Fault(
        "moment-before-its-update",
        Kind.OPTIMIZER,
        "Adagrad divides by the moment as it was before.",
        _FEW,
        _optimizers("root(s) + hyper.eps)", "root(s - gradient * gradient) + hyper.eps)"),
    ),
    Fault(
        "betas-swapped",
        Kind.OPTIMIZER,
        "Adam's first moment takes 1 - beta2 of the gradient.",
        _GROSS,
        _optimizers("+ (1.0 - hyper.beta1) * gradient\n", "+ (1.0 - hyper.beta2) * gradient\n"),
    ),
    Fault(
        "second-moment-not-corrected",
        Kind.OPTIMIZER,
        "Partial row-wise Adam does not correct v.",
        _EDGE,
        _optimizers("root(quotient(v, tl.full((1,), hyper.correction2, WORK)))", "root(v)"),
    ),
    Fault(
        "powers-in-fp32",
        Kind.OPTIMIZER,
        "1 - beta^t is computed in fp32.",
        _BITS,
        _optimizers(
            "weight_decay, 1 - beta1**step, 1 - beta2**step)",
            "weight_decay, 1 - _single(beta1, step), 1 - _single(beta2, step))\n\n\n"
            "def _single(beta: float, step: int) -> float:\n"
            "    import numpy\n\n"
            "    return float(numpy.float32(beta) ** numpy.float32(step))",
        ),
    ),
    Fault(
        "decay-of-partial-adam-lost",
        Kind.OPTIMIZER,
        "Partial row-wise Adam ignores weight decay.",
        _EDGE,
        _module("adam = module.optimizer in WITH_SECOND", "adam = module.optimizer is OptimizerKind.ADAM"),
    ),
    Fault(
        "zero-gradients-skipped",
        Kind.OPTIMIZER,
        "Elements whose gradient is zero are not updated, though moments and decay move them.",
        _FEW,
        _optimizers(
            _INSIDE + _ELEMENTS,
            "inside = live[:, None] & (column[None, :] < dim[:, None]) & (gradient != 0.0)\n" + _ELEMENTS,
        ),
    ),
    Fault(
        "decay-skipped-without-gradient",
        Kind.OPTIMIZER,
        "Row-wise Adagrad skips rows whose gradient is zero, though they decay.",
        _EDGE,
        _optimizers(
            "    gradient = tl.where(inside, total.to(WORK), 0.0)\n",
            "    gradient = tl.where(inside, total.to(WORK), 0.0)\n"
            "    if OPTIMIZER == ROWWISE_ADAGRAD:\n"
            "        live = live & (tl.max(tl.abs(gradient), axis=1) != 0)\n"
            "        inside = inside & live[:, None]\n",
        ),
    ),
    Fault(
        "row-updated-one-column-too-wide",
        Kind.WIDTH,
        "An update writes back the first element of the next row.",
        _EDGE,
        _optimizers(
            _INSIDE + _ELEMENTS,
            "inside = live[:, None] & (column[None, :] <= dim[:, None])\n" + _ELEMENTS,
        ),
    ),
    Fault(
        "vector-tail-not-updated",
        Kind.WIDTH,
        "Columns beyond a multiple of eight keep weights and moments.",
        _EDGE,
        _optimizers(
            _INSIDE + _ELEMENTS,
            "inside = live[:, None] & (column[None, :] < tl.where(dim > 8, dim // 8 * 8, dim)[:, None])\n" + _ELEMENTS,
        ),
    ),
    Fault(
        "step-by-quotient-of-gradient",
        Kind.OPTIMIZER,
        "Adagrad's step is lr (G / d), not (lr G) / d.",
        _BITS,
        _optimizers(
            "result = weight - quotient(hyper.learning_rate * gradient, root(s) + hyper.eps)",
            "result = weight - hyper.learning_rate * quotient(gradient, root(s) + hyper.eps)",
        ),
        reach=Reach.NOBODY,
        proof="Both are algebraic forms of the contract's formula; the oracle's interval is the hull over them "
        "(numerics.md, Optimizers).",
    ),
    Fault(
        "decay-of-zero-added",
        Kind.NON_FINITE,
        "Adam adds 0 w where there is no decay: NaN from an infinite row.",
        _EDGE,
        _optimizers("if DECAY == DECOUPLED:\n            direction", "if DECAY != L2:\n            direction"),
        reach=Reach.NOBODY,
        proof="The contract's formula multiplies the row by a decay of zero, which gives this NaN; kernels that leave "
        "it out do not. Where the row is infinite, Adam's result is undetermined in the oracle (optimizers.py).",
    ),
    Fault(
        "bias-correction-ends-at-1100",
        Kind.OPTIMIZER,
        "Adam's bias correction ends with step 1,100.",
        _EDGE,
        (
            Edit(
                "optimizers.py",
                "1 - beta1**step, 1 - beta2**step)",
                "1 - beta1**step, 1 - beta2**step if step <= 1100 else 1.0)",
            ),
        ),
    ),
    Fault(
        "partial-mean-square-of-512-columns",
        Kind.OPTIMIZER,
        "Partial row-wise Adam's mean(G^2) leaves out columns from 512 on.",
        _EDGE,
        (
            Edit(
                "optimizers.py",
                "_mean_square(gradient, dim)\n            tl.store(state.momentum2 + row",
                "_mean_square(tl.where(column[None, :] < 512, gradient, 0.0), dim)\n"
                "            tl.store(state.momentum2 + row",
            ),
        ),
        first=("edges",),
    ),
    Fault(
        "eps-dropped-for-large-moments",
        Kind.OPTIMIZER,
        "Row-wise Adagrad leaves eps out where the moment is above 10,000.",
        _FEW,
        (
            Edit(
                "optimizers.py",
                "divisor = root(m) + hyper.eps\n        rate",
                "divisor = root(m) + tl.where(m > 1.0e4, 0.0, hyper.eps)\n        rate",
            ),
        ),
        first=("edges",),
    ),
)

ROUNDING: tuple[Fault, ...] = (
    Fault(
        "bf16-truncated",
        Kind.ROUNDING,
        "bf16 is cut, not rounded.",
        _BITS,
        _rounding("carried = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16", "carried = bits >> 16"),
    ),
    Fault(
        "bf16-half-away",
        Kind.ROUNDING,
        "Ties go away from zero in bf16.",
        _BITS,
        _rounding("carried = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16", "carried = (bits + 0x8000) >> 16"),
    ),
    Fault(
        "bf16-half-down",
        Kind.ROUNDING,
        "Ties go towards zero in bf16.",
        _BITS,
        _rounding("carried = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16", "carried = (bits + 0x7FFF) >> 16"),
    ),
    Fault(
        "fp16-flushed",
        Kind.HARDWARE,
        "Results below 2^-14 become zero in fp16.",
        _EDGE,
        _rounding(
            "rounded = _once(values).to(tl.float16)\n",
            "rounded = tl.where(tl.abs(values) < 6.103515625e-05, 0.0, _once(values)).to(tl.float16)\n",
        ),
    ),
    Fault(
        "fp16-saturated",
        Kind.ROUNDING,
        "fp16 takes its largest number for what overflows.",
        _EDGE,
        _rounding(
            "rounded = _once(values).to(tl.float16)\n",
            "rounded = tl.minimum(tl.maximum(_once(values), -65504.0), 65504.0).to(tl.float16)\n",
        ),
    ),
    Fault(
        "fp32-results-flushed",
        Kind.HARDWARE,
        "Subnormal results become zero in fp32.",
        _EDGE,
        _rounding(
            "rounded = values.to(tl.float32)\n    elif",
            "rounded = values.to(tl.float32)\n"
            "        rounded = tl.where(tl.abs(rounded) < 1.1754943508222875e-38, 0.0, rounded)\n    elif",
        ),
    ),
    Fault(
        "root-to-22-bits",
        Kind.HARDWARE,
        "Square roots are good to 2^-21: an approximation taken for the root.",
        _BITS,
        _rounding("result = tl.sqrt_rn(values)", "result = tl.sqrt_rn(values) * (1.0 + 4.76837158203125e-07)"),
    ),
    Fault(
        "quotient-to-22-bits",
        Kind.HARDWARE,
        "Quotients are good to 2^-21.",
        _BITS,
        _rounding(
            "result = tl.div_rn(dividend, divisor)",
            "result = tl.div_rn(dividend, divisor) * (1.0 + 4.76837158203125e-07)",
        ),
    ),
    Fault(
        "root-one-ulp-off",
        Kind.HARDWARE,
        "A quarter of the square roots that fp32 rounds are the number next to the nearest.",
        _BITS,
        _rounding(
            "result = tl.sqrt_rn(values)", "result = tl.sqrt_rn(values)\n" + _ONE_ULP_OFF.format("result", "values")
        ),
        first=("optimizer_state", "steps"),
    ),
    Fault(
        "quotient-one-ulp-off",
        Kind.HARDWARE,
        "A quarter of the quotients that fp32 rounds are the number next to the nearest.",
        _BITS,
        _rounding(
            "result = tl.div_rn(dividend, divisor)",
            "result = tl.div_rn(dividend, divisor)\n" + _ONE_ULP_OFF.format("divisor", "dividend"),
        ),
        first=("optimizer_state", "steps"),
    ),
    Fault(
        "approximate-root",
        Kind.HARDWARE,
        "The compiler's approximate square root.",
        _BITS,
        _rounding("result = tl.sqrt_rn(values)", "result = tl.sqrt(values)"),
        first=("optimizer_state", "steps"),
        reach=Reach.GPU,
        proof="The interpreter's tl.sqrt is NumPy's, which is correctly rounded.",
    ),
    Fault(
        "approximate-quotient",
        Kind.HARDWARE,
        "The compiler's full-range division.",
        _BITS,
        _rounding("result = tl.div_rn(dividend, divisor)", "result = dividend / divisor"),
        first=("optimizer_state", "steps"),
        reach=Reach.GPU,
        proof="The interpreter's division is NumPy's, which is correctly rounded.",
    ),
    Fault(
        "differences-flushed",
        Kind.HARDWARE,
        "SGD subtracts with an instruction that flushes subnormal numbers.",
        _EDGE,
        _optimizers(
            "result = weight - hyper.learning_rate * gradient\n    elif",
            "step = hyper.learning_rate * gradient\n"
            "        result = weight - step\n"
            "        if WORK == tl.float32:\n"
            "            result = tl.inline_asm_elementwise(\n"
            "                'sub.ftz.f32 $0, $1, $2;', '=f,f,f', [weight, step], tl.float32, True, 1\n"
            "            )\n"
            "    elif",
        ),
        reach=Reach.GPU,
        proof="The interpreter has no inline assembly.",
    ),
    Fault(
        "fused-multiply-adds",
        Kind.HARDWARE,
        "The compiler fuses products and sums.",
        _BITS,
        (Edit("tiles.py", "enable_fp_fusion=False", "enable_fp_fusion=True"),),
        reach=Reach.NOBODY,
        proof="A fused product is rounded once less: every bound contains the unrounded product (numerics.md, Sums and "
        "Optimizers), and exact data stay exact.",
    ),
    Fault(
        "fp64-through-fp32-to-fp16",
        Kind.ROUNDING,
        "fp64 is rounded to fp32 on its way to fp16.",
        _BITS,
        _rounding("rounded = _once(values).to(tl.float16)\n", "rounded = values.to(tl.float32).to(tl.float16)\n"),
        reach=Reach.NOBODY,
        proof="C++'s half types convert a double through a float by design, so both results are allowed "
        "(numerics.md, double rounding; roundoff.stored).",
    ),
    Fault(
        "output-through-fp16",
        Kind.ROUNDING,
        "Outputs are rounded to fp16 before their own type.",
        _BITS,
        (
            Edit(
                "forward.py",
                "stored = to_nearest(total, output.dtype.element_ty)",
                "stored = to_nearest(to_nearest(total, tl.float16).to(tl.float32), output.dtype.element_ty)",
            ),
        ),
    ),
    Fault(
        "rounding-not-stochastic",
        Kind.STOCHASTIC,
        "Rows are rounded to nearest.",
        _BITS,
        _optimizers("if STOCHASTIC:\n", "if STOCHASTIC and OPTIMIZER == -1:\n"),
        report=f"{_FBGEMM}/pull/5972",
    ),
    Fault(
        "fp16-biased",
        Kind.STOCHASTIC,
        "fp16 rounds up half as often as it should.",
        _BITS,
        _rounding("cut = magnitude + (random >> 19)", "cut = magnitude + (random >> 20)"),
    ),
    Fault(
        "bf16-biased",
        Kind.STOCHASTIC,
        "bf16 rounds up half as often as it should.",
        _BITS,
        _rounding(
            "tl.minimum(magnitude + (random >> 16), 0x7F7F0000)", "tl.minimum(magnitude + (random >> 17), 0x7F7F0000)"
        ),
    ),
    Fault(
        "fp16-second-neighbour",
        Kind.STOCHASTIC,
        "One random bit too many: fp16 may go one unit too far.",
        _BITS,
        _rounding("cut = magnitude + (random >> 19)", "cut = magnitude + (random >> 18)"),
    ),
    Fault(
        "fp16-overflows",
        Kind.STOCHASTIC,
        "fp16 rounds its largest numbers up to infinity.",
        _EDGE,
        _rounding("(tl.minimum(cut, 0x477FE000) & 0xFFFFE000)", "(cut & 0xFFFFE000)"),
        reach=Reach.NOBODY,
        proof="A stochastic store may take either neighbour, and infinity is the upper neighbour of 65504: declared "
        "as saturating, both ends are allowed (Store.saturates).",
    ),
    Fault(
        "one-random-number-a-row",
        Kind.STOCHASTIC,
        "All elements of a row share one random number.",
        _BITS,
        _optimizers("random_words(seed, number, element)", "random_words(seed, number, row[:, None] + element * 0)"),
    ),
    Fault(
        "random-numbers-by-column",
        Kind.STOCHASTIC,
        "All rows share the random numbers of their columns.",
        _BITS,
        _optimizers("random_words(seed, number, element)", "random_words(seed, number, column[None, :] + element * 0)"),
    ),
    Fault(
        "random-numbers-reused",
        Kind.STOCHASTIC,
        "Every step takes the same random numbers.",
        _BITS,
        _module("module.updates += 1", "module.updates += 0"),
    ),
    Fault(
        "seed-ignored",
        Kind.STOCHASTIC,
        "Every seed gives the same random numbers.",
        _BITS,
        _rounding("tl.philox(seed, low", "tl.philox(seed * 0, low"),
    ),
    Fault(
        "bf16-saturated",
        Kind.ROUNDING,
        "bf16 takes its largest number for what overflows.",
        _EDGE,
        (
            Edit(
                "rounding.py",
                "        quiet_nan = (bits >> 16) | 0x40",
                "        inf16 = (bits >> 16) & 0x7FFF\n"
                "        carried = tl.where(((carried & 0x7FFF) == 0x7F80) & (inf16 != "
                "0x7F80), carried - 1, carried)\n"
                "        quiet_nan = (bits >> 16) | 0x40",
            ),
        ),
    ),
    Fault(
        "infinite-weights-reach-padding",
        Kind.NON_FINITE,
        "Zeros beyond a row's columns, which an infinite weight makes NaN, are left in the mean of G^2.",
        _EDGE,
        _optimizers("gradient = tl.where(inside, total.to(WORK), 0.0)", "gradient = total.to(WORK)"),
    ),
    Fault(
        "nan-rounds-up-to-zero",
        Kind.NON_FINITE,
        "bf16 rounds NaN as a number: where all its bits are set it becomes -0.",
        _EDGE,
        (
            Edit(
                "rounding.py",
                "rounded = tl.where(is_nan, quiet_nan, carried).to(tl.uint16)",
                "rounded = carried.to(tl.uint16)",
            ),
        ),
        reach=Reach.GPU,
        proof="NaN that arithmetic makes has all its bits set on NVIDIA's GPUs, and one "
        "beside the exponent here: that one stays NaN.",
        first=("non_finite",),
    ),
    Fault(
        "infinity-saturates-stochastically",
        Kind.STOCHASTIC,
        "Stochastic rounding makes the largest number of infinity.",
        _EDGE,
        (Edit("rounding.py", "is_finite = magnitude < 0x7F800000", "is_finite = magnitude <= 0x7F800000"),),
        first=("stochastic_rounding",),
    ),
    Fault(
        "seed-of-four-bits",
        Kind.STOCHASTIC,
        "Four bits of the seed choose the random numbers.",
        _BITS,
        (Edit("rounding.py", "tl.philox(seed, low", "tl.philox(seed & 0xF, low"),),
    ),
    Fault(
        "middle-runs-not-stochastic",
        Kind.STOCHASTIC,
        "Runs from 32 to 255 are rounded to nearest.",
        _BITS,
        (update_calls.whole_runs(stochastic="STOCHASTIC and not IS_MIDDLE"),),
    ),
    Fault(
        "narrow-rows-not-stochastic",
        Kind.STOCHASTIC,
        "Tables of 32 columns and fewer are rounded to nearest.",
        _BITS,
        (Edit("optimizers.py", "    if STOCHASTIC:\n", "    if STOCHASTIC and column.shape[0] > 32:\n"),),
    ),
    Fault(
        "random-numbers-of-long-runs-repeat",
        Kind.STOCHASTIC,
        "Long runs round every step with the random numbers of the first.",
        _BITS,
        (update_calls.long_runs(number="number * 0"),),
    ),
)

BOUNDS: tuple[Fault, ...] = (
    Fault(
        "index-of-rows-passes",
        Kind.BOUNDS,
        "An index equal to the number of rows passes the check.",
        _EDGE,
        _bounds("(row >= rows)) & (rows > 0)", "(row > rows)) & (rows > 0)"),
        report=f"{_FBGEMM}/pull/6215",
    ),
    Fault(
        "pruned-repaired",
        Kind.BOUNDS,
        "Index -1 is repaired to row 0.",
        _EDGE,
        _bounds("outside = ((row < -1)", "outside = ((row < 0)"),
    ),
    Fault(
        "negative-passes",
        Kind.BOUNDS,
        "Negative indices pass the check and contribute nothing.",
        _EDGE,
        _bounds("outside = ((row < -1) | (row >= rows)) & (rows > 0)", "outside = (row >= rows) & (rows > 0)"),
    ),
    Fault(
        "repaired-to-the-last-row",
        Kind.BOUNDS,
        "A bad index becomes the last row.",
        _EDGE,
        _bounds("tl.store(indices + lookup, 0, mask=outside)", "tl.store(indices + lookup, rows - 1, mask=outside)"),
    ),
    Fault(
        "decreasing-offsets-pass",
        Kind.BOUNDS,
        "Offsets that decrease are not repaired.",
        _EDGE,
        _bounds("offsets.clamp(0, lookups).cummax(0).values", "offsets.clamp(0, lookups)"),
        report=f"{_FBGEMM}/pull/806",
    ),
    Fault(
        "last-offset-kept",
        Kind.BOUNDS,
        "A last offset below the number of lookups stays.",
        _EDGE,
        _bounds("repaired[-1:] = lookups\n", "repaired[-1:] = repaired[-1:]\n"),
        report=f"{_FBGEMM}/pull/6291",
    ),
    Fault(
        "single-bad-index-not-fatal",
        Kind.BOUNDS,
        "FATAL lets one bad index pass.",
        _EDGE,
        _bounds("if mode is BoundsCheck.FATAL and int(count):", "if mode is BoundsCheck.FATAL and int(count) > 1:"),
        report=f"{_FBGEMM}/pull/3979",
    ),
    Fault(
        "first-offset-not-fatal",
        Kind.BOUNDS,
        "FATAL lets a first offset above zero pass.",
        _EDGE,
        _bounds(
            "wrong = (repaired != offsets).sum() + (repaired[:1] != 0).sum()", "wrong = (repaired != offsets).sum()"
        ),
    ),
    Fault(
        "warnings-of-offsets-alone",
        Kind.BOUNDS,
        "Wrong indices are not counted.",
        _EDGE,
        _module("(wrong + wrong_indices).reshape(1)", "(wrong + 0 * wrong_indices).reshape(1)"),
    ),
    Fault(
        "repaired-in-place",
        Kind.BOUNDS,
        "The caller's indices are repaired in place.",
        _EDGE,
        _bounds("repaired = indices.clone()", "repaired = indices"),
        reach=Reach.NOBODY,
        proof="The contract lets a repair happen in place: each index is found as given, or as repaired "
        "(tally.repaired).",
    ),
)

LAYOUT: tuple[Fault, ...] = (
    Fault(
        "output-feature-major",
        Kind.VARIABLE_BATCH,
        "A variable batch's output is feature-major.",
        _EDGE,
        _layout(
            "starts = (np.cumsum(blocks) - blocks.reshape(-1)).reshape(blocks.shape).T  # (features, ranks), in bag "
            "order",
            "flat = (counts * dims).reshape(-1)\n    starts = (np.cumsum(flat) - flat).reshape(counts.shape)",
        ),
        report=f"{_TORCHREC}/pull/3941",
    ),
    Fault(
        "width-of-the-first-feature",
        Kind.VARIABLE_BATCH,
        "Bags of a variable batch are spaced by the first feature's width.",
        _EDGE,
        _layout("sample * dims[feature, 0]", "sample * dims[0, 0]"),
    ),
    Fault(
        "columns-by-table",
        Kind.SHARING,
        "Output columns follow the order of the tables, not of the features.",
        _EDGE,
        _layout(
            "self.columns = torch.cumsum(self.dims, 0) - self.dims",
            "order = torch.tensor(sorted(range(len(self.feature_tables)), "
            "key=lambda f: self.feature_tables[f]))\n"
            "        widths = self.dims[order]\n"
            "        self.columns = torch.empty_like(self.dims)\n"
            "        self.columns[order] = torch.cumsum(widths, 0) - widths",
        ),
        report=f"{_FBGEMM}/pull/5523",
    ),
    Fault(
        "weights-taken-for-contiguous",
        Kind.LAYOUT,
        "Strided per-sample weights are read as if contiguous.",
        _EDGE,
        _module("per_sample_weights.detach().contiguous()", "per_sample_weights.detach()"),
        first=("index_types",),
    ),
    Fault(
        "gradient-taken-for-contiguous",
        Kind.LAYOUT,
        "A strided gradient is read as if contiguous.",
        _EDGE,
        _module(
            "grad_output = grad_output.contiguous()",
            "grad_output = grad_output.as_strided(grad_output.shape, torch.empty(grad_output.shape, "
            "device='meta').stride()) if grad_output.numel() and grad_output.untyped_storage().nbytes() >= "
            "(grad_output.storage_offset() + grad_output.numel()) * grad_output.element_size() else "
            "grad_output.contiguous()",
        ),
        report=f"{_FBGEMM}/pull/3006",
    ),
    Fault(
        "indices-taken-for-contiguous",
        Kind.LAYOUT,
        "Strided indices are read as if contiguous.",
        _EDGE,
        _module(
            "indices, offsets = indices.contiguous(), offsets.contiguous()",
            "indices, offsets = indices.as_strided(indices.shape, (1,)), offsets.contiguous()",
        ),
    ),
    Fault(
        "int32-indices-cut",
        Kind.LAYOUT,
        "int32 indices are read as 8 bits.",
        _EDGE,
        (
            Edit(
                "forward.py",
                "found += (index.to(tl.int64),)",
                "row = index.to(tl.int64)\n"
                "        if indices.dtype.element_ty == tl.int32:\n"
                "            row = tl.where(row >= 0, row & 0xFF, row)\n"
                "        found += (row,)",
            ),
        ),
    ),
)

CALLS: tuple[Fault, ...] = (
    Fault(
        "step-counted-once",
        Kind.STATE,
        "Adam's t stays at the first step's.",
        _EDGE,
        _module("self.step += 1", "self.step += self.updates == 0"),
        report=f"{_FBGEMM}/issues/4102",
    ),
    Fault(
        "step-one-late",
        Kind.STATE,
        "Adam's t is one too high.",
        _EDGE,
        _module("self.weight_decay, max(self.step, 1))", "self.weight_decay, self.step + 1)"),
    ),
    Fault(
        "step-of-the-backward",
        Kind.CALLS,
        "Adam's t counts backwards, not forwards.",
        _EDGE,
        _module(
            "self.hyper,\n            rule,",
            "Hyper.at(self.hyper.learning_rate, module.eps, module.beta1, module.beta2, module.weight_decay, "
            "max(1, module.step)),\n            rule,",
        ),
    ),
    Fault(
        "rate-of-the-backward",
        Kind.STATE,
        "The learning rate is read when the backward runs.",
        _EDGE,
        _module(
            "self.hyper,\n            rule,",
            "self.hyper._replace(learning_rate=module.learning_rate),\n            rule,",
        ),
    ),
    Fault(
        "step-not-saved",
        Kind.STATE,
        "A saved module forgets Adam's t.",
        _EDGE,
        _module('return {"step": self.step,', 'return {"step": 0,'),
        report=f"{_FBGEMM}/issues/4102",
    ),
    Fault(
        "transpose-of-the-call-before",
        Kind.UNWRITTEN,
        "A sort is kept for the next call with as many lookups.",
        _EDGE,
        _module(
            "return transpose(self.indices, self.bags, module.features, scaling, module.allocate)",
            "kept = module.__dict__.setdefault('_kept_runs', {})\n"
            "        if len(self.indices) not in kept:\n"
            "            kept[len(self.indices)] = transpose(self.indices, self.bags, module.features, scaling, "
            "module.allocate)\n"
            "        return kept[len(self.indices)]",
        ),
        first=("steps",),
    ),
    Fault(
        "sort-of-the-latest-forward",
        Kind.CALLS,
        "A backward uses the sort of the latest forward.",
        _EDGE,
        _module(
            "            call.runs = call.transposed()\n",
            "            self.__dict__['_latest'] = call.transposed()\n"
            "            call.runs = self.__dict__['_latest']\n",
        )
        + _module(
            "        if self.runs is None:\n            self.runs = self.transposed()",
            "        self.runs = module.__dict__.get('_latest') or self.transposed()",
        ),
        variants=("hoist",),
    ),
    Fault(
        "moments-zeroed-late",
        Kind.UNWRITTEN,
        "A new module's moments are not zeroed.",
        _EDGE,
        _module("            view.zero_()\n", "            view.mul_(1)\n"),
        reach=Reach.NOBODY,
        proof="The contract begins at a given state, which every adapter writes before the first forward; what a "
        "constructor leaves behind is never read. A user's first step would show it, this suite's does not.",
    ),
)
