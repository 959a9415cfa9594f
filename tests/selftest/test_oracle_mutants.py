"""The oracle and the verdict with one mistake each: the selftests notice every one.

A mutant is a copy of `equivcheck.oracle`, `compare` and `tally` with a source edit, under another package name; the
selftests are copies, too, that import it. Those that shall notice are named beside each mutant, and pass on the
unedited copy.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import equivcheck

PACKAGE, SELFTESTS = Path(equivcheck.__file__).parent, Path(__file__).parent
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Mutant:
    """A mistake: in a file of the oracle, or in compare.py or tally.py, `old`, which occurs once, becomes `new`.

    `noticed_by` names selftests: `module:test`, with `[n]` for the n-th of its parameters; or, of right simulated
    kernels, `right:SOURCE:first:last` for seeds.
    """

    name: str
    file: str
    old: str
    new: str
    noticed_by: tuple[str, ...]


SUMS, ROUNDOFF, OPTIMIZERS = "oracle/sums.py", "oracle/roundoff.py", "oracle/optimizers.py"
TESTS = "test_one_element:test_one_wrong_element_is_seen"
STAYS = "test_roundoff:test_an_operation_stays_inside"
BY_CHANCE = "test_right_kernels:test_forms_that_are_exact_by_chance"
REACHED = "test_right_kernels:test_the_bound_of_a_sum_is_reached[1]"

MUTANTS = (
    Mutant(
        "roundings of terms dropped",
        SUMS,
        " + sums.errors.roundings * info.unit_roundoff\n",
        "\n",
        ("test_right_kernels:test_the_bound_of_a_product_is_reached",),
    ),
    Mutant("k - 2 additions", SUMS, "summation.error(sums.terms) +", "summation.error(sums.terms - 1) +", (REACHED,)),
    Mutant(
        "k additions",
        SUMS,
        "summation.error(sums.terms) +",
        "summation.error(sums.terms + 1) +",
        ("test_right_kernels:test_the_bound_of_a_sum_is_reached[0]",),
    ),
    Mutant(
        "bound of sums doubled",
        SUMS,
        "radius = sums.gauge * relative[:, None]",
        "radius = 2 * sums.gauge * relative[:, None]",
        (REACHED,),
    ),
    Mutant(
        "bound of sums halved",
        SUMS,
        "radius = sums.gauge * relative[:, None]",
        "radius = 0.5 * sums.gauge * relative[:, None]",
        (REACHED,),
    ),
    Mutant(
        "value taken for the gauge",
        SUMS,
        "radius = sums.gauge *",
        "radius = np.abs(sums.value) *",
        ("right:any values:0:40",),
    ),
    Mutant(
        "exact data not found",
        SUMS,
        "((sums.gauge <= limit[:, None]) | alone[:, None])",
        "alone[:, None]",
        ("test_oracle_exact:test_sum_by_hand",),
    ),
    Mutant(
        "exact up to 26 bits",
        SUMS,
        "sums.errors.quantum * summation.exact_units",
        "sums.errors.quantum * 4 * summation.exact_units",
        ("right:exact:0:40", "right:values of all magnitudes:0:40"),
    ),
    Mutant(
        "overflow judged by the value",
        SUMS,
        "undetermined = (sums.gauge >= largest[:, None])",
        "undetermined = (np.abs(sums.value) >= largest[:, None])",
        ("test_one_element:test_an_overflow_on_the_way_is_not_blamed",),
    ),
    Mutant(
        "nothing determined",
        SUMS,
        "undetermined = (sums.gauge >= largest[:, None]) & np.isfinite(sums.gauge)",
        "undetermined = np.ones(sums.gauge.shape, bool)",
        (f"{TESTS}[0]",),
    ),
    Mutant(
        "loss by underflow dropped",
        SUMS,
        "+ underflow[:, None]",
        "+ 0 * underflow[:, None]",
        ("right:values of all magnitudes:0:40", "right:any values:0:40"),
    ),
    Mutant(
        "gauge from summed duplicates",
        "oracle/sparse.py",
        "first, second = self._block(start, stop, data), self._block(start, stop, np.abs(data))",
        "first = self._block(start, stop, data)\n        first.sum_duplicates()\n        second = abs(first)",
        ("right:any values:0:40",),
    ),
    Mutant(
        "gauge of means not divided",
        "oracle/pooling.py",
        "gauge=gauge / scale[:, None] if self.mean else gauge",
        "gauge=gauge",
        ("test_right_kernels:test_the_bound_of_a_mean_is_approached",),
    ),
    Mutant(
        "store of outputs left out",
        "oracle/pooling.py",
        "interval = stored_sum(result.interval, dtype, self.arithmetic.output_store, self.arithmetic.accumulator)",
        "interval = result.interval",
        ("right:any values:0:40",),
    ),
    Mutant(
        "store of rows left out",
        "oracle/updates.py",
        "allowed = stored(Interval(low, high), self.dtype, store, DType.FP32)",
        "allowed = Interval(low, high)",
        ("test_oracle_exact:test_outputs_and_sgd_against_fractions[0]", "right:any values:0:40"),
    ),
    Mutant(
        "store of rows added to the bound",
        "oracle/updates.py",
        "allowed = stored(Interval(low, high),",
        "half = self.dtype.info.unit_roundoff\n"
        "        low, high = low - half * np.abs(low), high + half * np.abs(high)\n"
        "        allowed = stored(Interval(low, high),",
        ("test_one_element:test_the_other_side_of_a_tie_is_seen[1]",),
    ),
    Mutant(
        "fp64's own error always added",
        ROUNDOFF,
        "    if known.all():\n        return interval\n    wider = widened(interval, _OWN_ERROR, 0.0)\n",
        "    return widened(interval, _OWN_ERROR, 0.0)\n    wider = interval\n",
        ("test_one_element:test_the_other_side_of_a_tie_is_seen[1]",),
    ),
    Mutant(
        "ulps taken for u",
        ROUNDOFF,
        "units * _U * (1 + 2.0**-20)",
        "2 * units * _U * (1 + 2.0**-20)",
        ("test_roundoff:test_an_operation_is_tight",),
    ),
    Mutant(
        "u taken for ulps",
        ROUNDOFF,
        "units * _U * (1 + 2.0**-20)",
        "0.5 * units * _U * (1 + 2.0**-20)",
        (f"{STAYS}[0]",),
    ),
    Mutant(
        "eta/4 for eta/2",
        ROUNDOFF,
        "_FP32.smallest_normal if flushes else _ETA / 2",
        "_FP32.smallest_normal if flushes else _ETA / 4",
        tuple(f"{STAYS}[{n}]" for n in range(0, 84, 12)),
    ),
    Mutant(
        "eta/2 for eta where sums are truncated",
        SUMS,
        "(2 if isinstance(summation, TensorCore) else 1)",
        "1",
        ("right:values of all magnitudes:0:60",),
    ),
    Mutant(
        "eta/4 for eta/2 of terms",
        "oracle/terms.py",
        "e = info.smallest_subnormal / 2",
        "e = info.smallest_subnormal / 4",
        ("right:values of all magnitudes:0:40",),
    ),
    Mutant(
        "sharp quotients whatever is declared",
        ROUNDOFF,
        "if self.sharp and self.division <= 1.0:",
        "if self.sharp:",
        tuple(f"{STAYS}[{n}]" for n in range(144, 156)),
    ),
    Mutant(
        "sharp roots whatever is declared",
        ROUNDOFF,
        "if self.sharp and self.square_root <= 1.0:",
        "if self.sharp:",
        tuple(f"{STAYS}[{n}]" for n in range(168, 180)),
    ),
    Mutant(
        "sign of a gradient taken off its interval",
        ROUNDOFF,
        "low = a.low * np.where(a.low < 0, factor.high, factor.low)",
        "low = a.low * factor.low",
        tuple(f"{STAYS}[{n}]" for n in range(36, 48)),
    ),
    Mutant(
        "square across zero from an end",
        ROUNDOFF,
        "low = np.where((a.low < 0) & (a.high > 0), 0.0, np.minimum(first, second))",
        "low = np.minimum(first, second)",
        ("test_roundoff:test_a_square_across_zero_starts_at_zero",),
    ),
    Mutant(
        "overflow not noted",
        ROUNDOFF,
        "if _extent(interval) > _FP32.maximum:",
        "if _extent(interval) > _LARGEST:",
        ("test_roundoff:test_overflow_is_noted",),
    ),
    Mutant(
        "double rounding forgotten",
        ROUNDOFF,
        "low, high = np.minimum(low, twice.low), np.maximum(high, twice.high)",
        "del twice",
        ("test_roundoff:test_a_store_stays_inside[0]", "test_roundoff:test_a_store_stays_inside[1]"),
    ),
    Mutant(
        "stochastic stores to nearest",
        ROUNDOFF,
        "low, high = down(interval.low, dtype), up(interval.high, dtype)",
        "low, high = nearest(interval.low, dtype), nearest(interval.high, dtype)",
        ("test_roundoff:test_a_store_is_tight[0]",),
    ),
    Mutant(
        "forms (w - s) - c w and w - (s + c w) forgotten",
        OPTIMIZERS,
        "return hull(hull(factored, first), hull(late, joint))",
        "return hull(factored, first)",
        ("test_forms:test_every_form_is_right[1]",),
    ),
    Mutant(
        "form m + (1 - b) (x - m) forgotten",
        OPTIMIZERS,
        "return hull(*sums), hull(ops.rounded(sums[0]), ops.rounded(sums[1]))",
        "return sums[0], ops.rounded(sums[0])",
        ("test_forms:test_every_form_is_right[3]",),
    ),
    Mutant(
        "order (lr / d) G forgotten",
        OPTIMIZERS,
        "hull(ops.scale(gradient, multiplier), ops.divide(ops.scale(gradient, factor), denominator))",
        "ops.divide(ops.scale(gradient, factor), denominator)",
        ("test_forms:test_every_form_is_right[2]",),
    ),
    Mutant(
        "order (lr G) / d forgotten",
        OPTIMIZERS,
        "hull(ops.scale(gradient, multiplier), ops.divide(ops.scale(gradient, factor), denominator))",
        "ops.scale(gradient, multiplier)",
        (f"{BY_CHANCE}[1]",),
    ),
    Mutant(
        "order lr (G / d) forgotten",
        OPTIMIZERS,
        "    step = hull(step, ops.scale(ops.divide(gradient, denominator), factor))\n",
        "",
        (f"{BY_CHANCE}[0]",),
    ),
    Mutant(
        "Adam's order (lr / d) (m / c) forgotten",
        OPTIMIZERS,
        "        step = hull(step, ops.scale(unbiased, ops.divide(rate, denominator)))\n",
        "",
        (f"{BY_CHANCE}[2]",),
    ),
    Mutant(
        "Adam's order (lr / c) m / d forgotten",
        OPTIMIZERS,
        "        step = hull(step, ops.divide(ops.scale(new1, ops.divide(rate, correction1)), denominator))\n",
        "",
        (f"{BY_CHANCE}[5]",),
    ),
    Mutant(
        "Adam's order lr (m / c / d) forgotten",
        OPTIMIZERS,
        "    step = ops.scale(direction, rate)\n",
        "    step = ops.scale(unbiased, ops.divide(rate, denominator))\n",
        (f"{BY_CHANCE}[4]",),
    ),
    Mutant(
        "error of pow dropped",
        OPTIMIZERS,
        "relative = power * _U + 2.0**-52",
        "relative = 2.0**-52",
        ("right:optimizers:0:40",),
    ),
    Mutant(
        "Adam's t one late",
        "oracle/expect.py",
        "case.optimizer.step + step)",
        "case.optimizer.step + step + 1)",
        ("test_oracle_exact:test_adam_by_hand",),
    ),
    Mutant(
        "L2 decay by the rate",
        "oracle/formulas.py",
        "kept = (1 - multiplier * optimizer.weight_decay) * state.rows",
        "kept = (1 - rate * optimizer.weight_decay) * state.rows",
        ("test_oracle_exact:test_decay_by_hand",),
    ),
    Mutant(
        "lengths of means without empty bags",
        "oracle/gradients.py",
        "weight = (1.0 if weight is None else weight) / length[lookups.bag]",
        "weight = (1.0 if weight is None else weight) / length.max(initial=1)",
        ("test_oracle_exact:test_mean_by_hand",),
    ),
    Mutant(
        "comparison flipped",
        "tally.py",
        "right = ((low <= found) & (found <= high))",
        "right = ((low <= found) | (found <= high))",
        (f"{TESTS}[0]", f"{TESTS}[1]"),
    ),
    Mutant(
        "lower end forgotten",
        "tally.py",
        "right = ((low <= found) & (found <= high))",
        "right = (found <= high)",
        (f"{TESTS}[1]",),
    ),
    Mutant(
        "-0 is not +0",
        "tally.py",
        "right = ((low <= found) & (found <= high)) |",
        "other_sign = (low == 0) & (high == 0) & (np.signbit(found) != np.signbit(low))\n"
        "            right = ((low <= found) & (found <= high) & ~other_sign) |",
        ("test_one_element:test_an_exact_zero_may_have_either_sign",),
    ),
    Mutant(
        "-0 is +0 in untouched rows",
        "tally.py",
        "differs = _bytes(before) != _bytes(after)",
        "differs = before != after",
        ("test_one_element:test_a_lost_sign_of_an_untouched_zero_is_seen",),
    ),
    Mutant(
        "worst ratio halved",
        "tally.py",
        "float(ratio[comparable].max())",
        "0.5 * float(ratio[comparable].max())",
        (REACHED,),
    ),
    Mutant(
        "trust turned round",
        "compare.py",
        "if 2 * trusted < judged:",
        "if 2 * trusted > 2 * judged:",
        ("test_one_element:test_a_case_that_could_show_nothing_is_not_passed",),
    ),
    Mutant(
        "one stored value trusted",
        "oracle/pooling.py",
        "~np.isfinite(value) | (bound < smallest)",
        "~np.isfinite(value) | (low == high) | (bound < smallest)",
        ("test_trust:test_what_the_store_rounds_away_of_an_exact_sum_counts",),
    ),
    Mutant(
        "first moment forgotten",
        "compare.py",
        "(Tensor.MOMENTUM1, table.momentum1, ",
        "(Tensor.MOMENTUM1, None, ",
        (f"{TESTS}[4]",),
    ),
    Mutant(
        "second moment forgotten",
        "compare.py",
        "(Tensor.MOMENTUM2, table.momentum2, ",
        "(Tensor.MOMENTUM2, None, ",
        (f"{TESTS}[5]",),
    ),
    Mutant(
        "weight gradient forgotten",
        "compare.py",
        "if expected.weight_gradient is not None and result",
        "if expected.weight_gradient is None and result",
        (f"{TESTS}[6]",),
    ),
    Mutant(
        "untouched rows forgotten",
        "compare.py",
        "kept[table.touched] = False",
        "kept[:] = False",
        (f"{TESTS}[7]", f"{TESTS}[8]"),
    ),
    Mutant(
        "guards forgotten",
        "compare.py",
        "for guard in outcome.guards:",
        "for guard in outcome.guards[:0]:",
        (f"{TESTS}[9]",),
    ),
    Mutant(
        "inputs forgotten",
        "compare.py",
        "for step, after in enumerate(outcome.inputs_after):",
        "for step, after in enumerate(outcome.inputs_after[:0]):",
        (f"{TESTS}[10]", f"{TESTS}[11]"),
    ),
    Mutant(
        "warnings forgotten",
        "compare.py",
        "if not least <= result.warnings <= most:",
        "if result.warnings > most:",
        (f"{TESTS}[12]",),
    ),
)


class Copy:
    """The oracle, the verdict and the selftests under another package name."""

    def __init__(self, folder: Path, mutant: Mutant | None) -> None:
        self.name = f"equivcheck_mutant_{next(_NUMBERS)}"
        self.root = folder / self.name
        (self.root / "oracle").mkdir(parents=True)
        (self.root / "__init__.py").touch()
        files = {f"oracle/{path.name}": path for path in (PACKAGE / "oracle").glob("*.py")}
        for file, path in {**files, **{name: PACKAGE / name for name in ("compare.py", "tally.py")}}.items():
            text = path.read_text()
            if mutant is not None and file == mutant.file:
                assert text.count(mutant.old) == 1, f"{mutant.name}: its old text occurs {text.count(mutant.old)} times"
                text = text.replace(mutant.old, mutant.new)
            (self.root / file).write_text(self._moved(text))
        sys.path.insert(0, str(folder))
        self.folder = folder

    def close(self) -> None:
        """Forget the copy."""
        sys.path.remove(str(self.folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == self.name]:
            del sys.modules[name]

    def noticed(self, how: str) -> str | None:
        """The selftest that fails, of right kernels with the one seed at which it does; None if it passes."""
        kind, _, rest = how.partition(":")
        if kind == "right":
            source, first, last = rest.rsplit(":", 2)
            found = (f"right:{source}:{seed}:{seed + 1}" for seed in range(int(first), int(last)))
            return next((one for one in found if self._fails(one)), None)
        return how if self._fails(how) else None

    def _fails(self, how: str) -> bool:
        try:
            self._run(how)
        except Exception:  # an assertion, or an error that a mutant leads to: pytest shows both in red
            return True
        return False

    def _run(self, how: str) -> None:
        kind, _, rest = how.partition(":")
        if kind == "right":
            source, first, last = rest.rsplit(":", 2)
            module = self._module("test_right_kernels")
            assert module.blamed(module.SOURCES[source], range(int(first), int(last))) == []
        else:
            name, _, place = rest.partition("[")
            test = getattr(self._module(kind), name)
            test(**list(_parameters(test))[int(place.rstrip("]"))] if place else {})

    def _module(self, name: str) -> ModuleType:
        path = self.root / f"{name}.py"
        if not path.exists():
            path.write_text(self._moved((SELFTESTS / f"{name}.py").read_text()))
            importlib.invalidate_caches()
        return importlib.import_module(f"{self.name}.{name}")

    def _moved(self, text: str) -> str:
        for part in ("oracle", "compare", "tally"):
            text = text.replace(f"from equivcheck.{part}", f"from {self.name}.{part}")
        return text.replace("from equivcheck import oracle", f"from {self.name} import oracle")


def _parameters(test: Any) -> Iterator[dict[str, Any]]:
    """What pytest would call a test with, its topmost decorator changing slowest."""
    marks = [mark for mark in reversed(test.pytestmark) if mark.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        arguments: dict[str, Any] = {}
        for mark, value in zip(marks, values, strict=True):
            names = mark.args[0]
            arguments |= {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
        yield arguments


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], bool]]:
    """Whether a selftest fails without a mutant, each tried once."""
    copy = Copy(tmp_path_factory.mktemp("control"), None)
    yield cache(lambda how: copy.noticed(how) is not None)
    copy.close()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_of_the_oracle_is_noticed(
    mutant: Mutant,
    tmp_path: Path,
    control: Callable[[str], bool],
) -> None:
    copy = Copy(tmp_path, mutant)
    try:
        noticed = next((found for how in mutant.noticed_by if (found := copy.noticed(how)) is not None), None)
    finally:
        copy.close()
    print(f"{mutant.name}: noticed by {noticed}")
    assert noticed, f"{mutant.name} is noticed by none of {', '.join(mutant.noticed_by)}"
    assert not control(noticed), f"{noticed} fails without a mutant, too"
