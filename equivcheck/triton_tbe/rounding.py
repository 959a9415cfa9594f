"""Roundings: of quotients and roots, and of results into storage, to nearest or stochastically, each only once.

Triton's `/` and `sqrt` are approximations on a GPU; here all are correctly rounded, so that results are the same
everywhere. Conversions to bf16 are spelled out on the bits for the same reason.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widened(values, TYPE: tl.constexpr):
    """Stored values in an arithmetic's type, exactly. Directly behind a load: nothing computes in bf16.

    bf16 is the upper half of fp32.
    """
    if values.dtype == tl.bfloat16:
        single = (values.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        single = values.to(tl.float32)
    return single.to(TYPE)


@triton.jit
def quotient(dividend, divisor):
    """Correctly rounded quotient of fp32 or, where the divisor is fp64, of fp64."""
    if divisor.dtype == tl.float64:
        result = dividend / divisor
    else:
        result = tl.div_rn(dividend, divisor)
    return result


@triton.jit
def root(values):
    """Correctly rounded square root, fp32 or fp64."""
    if values.dtype == tl.float64:
        result = tl.sqrt(values)
    else:
        result = tl.sqrt_rn(values)
    return result


@triton.jit
def reciprocal(lengths, TYPE: tl.constexpr):
    """1 / length in `TYPE`, of integers; 1 for an empty bag, whose sum of nothing stays zero."""
    return quotient(1.0, tl.maximum(lengths, 1).to(TYPE))


@triton.jit
def to_nearest(values, TYPE: tl.constexpr):
    """Values (fp16, fp32 or fp64) rounded to `TYPE`, ties to even."""
    if TYPE == tl.float32:
        rounded = values.to(tl.float32)
    elif TYPE == tl.float16:
        rounded = _once(values).to(tl.float16)
    else:
        bits = _once(values).to(tl.uint32, bitcast=True)
        # Add just under half of the last kept bit, and the bit itself: a tie then carries only into an odd number.
        carried = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet_nan = (bits >> 16) | 0x40
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
        rounded = tl.where(is_nan, quiet_nan, carried).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return rounded


@triton.jit
def to_neighbour(values, random, TYPE: tl.constexpr):
    """Values (fp32 or fp64) rounded to one of their neighbours in `TYPE`, up in proportion to the distance.

    With x between the neighbours a < b, b is taken with probability (x - a) / (b - a), so that the mean is x; x = a
    stays. `random` is a tile of uint32. A magnitude above the largest number becomes that number; NaN and infinities
    stay. fp32 storage is as wide as the arithmetic: there is nothing to round.

    A number of the narrower type has zeros in the low bits of its fp32 form, and the fp32 numbers between two of them
    are evenly spaced: adding as many random bits as will be cut off, and cutting, is the rounding. Below 2^-14 fp16 is
    spaced by 2^-24 whatever the exponent; there the same is done in units of 2^-24.
    """
    if TYPE == tl.float32:
        rounded = values.to(tl.float32)
    else:
        single = values.to(tl.float32)
        bits = single.to(tl.uint32, bitcast=True)
        sign = bits & 0x80000000
        magnitude = bits & 0x7FFFFFFF
        is_finite = magnitude < 0x7F800000
        if TYPE == tl.float16:
            cut = magnitude + (random >> 19)
            near = (tl.minimum(cut, 0x477FE000) & 0xFFFFE000).to(tl.float32, bitcast=True)  # at most 65504
            is_tiny = magnitude < 0x38800000  # 2^-14
            units = tl.where(is_tiny, magnitude, 0).to(tl.float32, bitcast=True) * 16777216.0  # by 2^24, exactly
            low = units.to(tl.int32).to(tl.float32)
            up = (random >> 8).to(tl.float32) * 5.9604644775390625e-08 < units - low  # a uniform number in [0, 1)
            tiny = (low + up.to(tl.float32)) * 5.9604644775390625e-08
            chosen = tl.where(is_tiny, tiny, near).to(tl.uint32, bitcast=True)
            chosen = (tl.where(is_finite, chosen, magnitude) | sign).to(tl.float32, bitcast=True)
            rounded = chosen.to(tl.float16)
        else:
            cut = tl.minimum(magnitude + (random >> 16), 0x7F7F0000)  # at most the largest number
            chosen = tl.where(is_finite, cut, magnitude | ((magnitude > 0x7F800000).to(tl.uint32) << 22)) | sign
            rounded = (chosen >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return rounded


@triton.jit
def random_words(seed, update, elements):
    """Tile of uint32: Philox of the seed at counter (element, update), so every element of every update has its own.

    `elements` are 64-bit element numbers. Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
    """
    low = (elements & 0xFFFFFFFF).to(tl.uint32)
    high = (elements >> 32).to(tl.uint32)
    zero = low * 0
    word, _, _, _ = tl.philox(seed, low, high, zero + update.to(tl.uint32), zero)
    return word


@triton.jit
def _once(values):
    """fp32 from fp16, fp32 or fp64, such that rounding it further gives what rounding `values` at once gives.

    fp64 is rounded to odd: cut, with the last bit set where anything was lost. Two bits more than the final type
    suffice (Boldo and Melquiond, *Emulation of FMA and correctly rounded sums*, IEEE Trans. Comput. 57 (2008)).
    """
    if values.dtype == tl.float64:
        near = values.to(tl.float32)
        back = near.to(tl.float64)
        bits = near.to(tl.uint32, bitcast=True)
        bits = tl.where(tl.abs(back) > tl.abs(values), bits - 1, bits)
        lost = (back != values) & (values == values)
        single = (bits | lost.to(tl.uint32)).to(tl.float32, bitcast=True)
    else:
        single = values.to(tl.float32)
    return single
