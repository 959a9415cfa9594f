"""Signatures: all that kernels are compiled for, drawn together, for soaks of subjects whose kernels are compiled.

Compiling takes longer than everything else in a case: TorchRec's Triton TBE has the sum of all widths and the number of
features as constants in its kernels, and five kernels to a step. Pools of widths and of types that are drawn one by one
multiply, and hardly two cases share a kernel. So a run has a few signatures, each a list of features' widths with
types, optimizer and so on. Its cases differ in rows, bags, values, layouts and calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from equivcheck import words
from equivcheck.case import Bag, Case, Feature, Lookup, OptimizerKind, PerSampleWeights, Pooling
from strategies.chooser import SeededChooser
from strategies.data import Recipe
from strategies.menu import Menu, Sharing, Supports

_AXES = ("weights", "output", "accumulation", "indices", "weighted", "optimizers", "decay", "pooling", "rounding")
"""Axes of a menu that are constants, or types of arguments, of a compiled kernel. A case has one option of each."""
_PATTERNS = ((0, 0, 0, 0), (0, 1, 0, 0), (0, 1, 1, 0), (0, 1, 2, 3))
"""Which of four widths a signature's features have, in turn."""
_SHARED_PATTERNS = _PATTERNS[:2]
"""The same where features surely share tables: the first, third and fourth feature may then be of one table."""
_COLUMNS = 512
"""Columns of an output of a signature at most: what a small case has room for."""
_TRIES = 64


@dataclass(frozen=True)
class Signature:
    """Features' widths, and one option of each of `_AXES`."""

    widths: tuple[int, ...]
    options: tuple[Any, ...]

    def narrowed(self, menu: Menu) -> Menu | None:
        """The menu with what is compiled as the signature has it; None if the menu does not have that.

        Which recipes are exact depends on widths: squares want powers of two, revealing values four columns.
        """
        if any(option not in getattr(menu, axis) for axis, option in zip(_AXES, self.options, strict=True)):
            return None
        if not set(self.widths) <= {dim for dims in menu.dims for dim in dims}:
            return None
        sharing = _surely_shares(menu)
        if sharing and (len(self.widths) != 4 or not self.widths[0] == self.widths[2] == self.widths[3]):
            return None
        few = len(self.widths) <= 4
        recipes = tuple(recipe for recipe in menu.recipes if self._suits(recipe))
        single: dict[str, Any] = {axis: (option,) for axis, option in zip(_AXES, self.options, strict=True)}
        return replace(
            menu,
            **single,
            recipes=recipes or menu.recipes,
            # What shares a table for sure is added to two features, or three.
            feature_parts=(2,) if sharing else (len(self.widths),) if few else menu.feature_parts,
            feature_counts=(0,) if few else (len(self.widths),),
        )

    def applied(self, case: Case) -> Case:
        """The case with as many features as the signature has, of its widths.

        Features that are missing repeat those that are there. One that shares a table of another width gets a table
        of its own, with as many rows.
        """
        drawn = case.features
        features = []
        for position, width in enumerate(self.widths):
            feature = drawn[position % len(drawn)]
            if feature.table is None or self.widths[feature.table] != width:
                feature = _with_table(feature, drawn, width)
            features.append(feature)
        return msgspec.structs.replace(case, features=tuple(features))

    def _suits(self, recipe: Recipe) -> bool:
        powers = all(width & (width - 1) == 0 for width in self.widths)
        return (powers or recipe not in (Recipe.SQUARES, Recipe.ROOTS)) and min(self.widths) >= recipe.data.least_dim


def signatures(menus: list[Menu], seed: int, count: int, supports: Supports) -> tuple[Signature, ...]:
    """The signatures of a run: a pure function of its first seed, each drawn from another menu in turn.

    An option comes as often as the menu lists it. Combinations that the subject refuses in the simplest case are drawn
    again; the last one stays where it takes none of them, since what it refuses may be the simplest case.
    """
    order = words.permutation(words.derive(seed, "menus"), len(menus))
    return tuple(
        _drawn(menus[order[number % len(menus)]], words.derive(seed, "signature", number), supports)
        for number in range(count)
    )


def _drawn(menu: Menu, seed: int, supports: Supports) -> Signature:
    chooser = SeededChooser(seed)
    for _ in range(_TRIES):
        options = {axis: chooser.choose(getattr(menu, axis)) for axis in _AXES}
        signature = Signature(_widths(chooser, menu, options["pooling"]), tuple(options.values()))
        if supports(_simplest(signature.widths, options)):
            break
    return signature


def _widths(chooser: SeededChooser, menu: Menu, pooling: Pooling) -> tuple[int, ...]:
    sharing = _surely_shares(menu)
    count = 4 if sharing else chooser.choose(menu.feature_counts) or max(1, chooser.choose(menu.feature_parts))
    dims = chooser.choose(menu.dims)
    narrow = tuple(dim for dim in dims if count * dim <= _COLUMNS) or (min(dims),)
    widths = [chooser.choose(narrow) for _ in range(4)]
    pattern = chooser.choose(_SHARED_PATTERNS if sharing else _PATTERNS)
    if pooling is Pooling.NONE:  # all tables are of one width then
        pattern = _PATTERNS[0]
    return tuple(widths[pattern[position % len(pattern)]] for position in range(count))


def _surely_shares(menu: Menu) -> bool:
    return set(menu.sharing) <= {Sharing.SURELY, Sharing.UNSORTED}


def _simplest(widths: tuple[int, ...], options: dict[str, Any]) -> Case:
    """A case of a signature, to ask for."""
    kind, weighted = options["optimizers"], options["weighted"]
    decays = {"decay": options["decay"]} if kind is OptimizerKind.ROWWISE_ADAGRAD else {}
    same = ("weights", "output", "accumulation", "indices", "pooling", "rounding")
    bags = (Bag((Lookup(),)),)
    case = Case(
        features=tuple(Feature(dim=width, bags=bags) for width in widths),
        per_sample_weights=None if weighted is None else PerSampleWeights(weighted),
        **{axis: options[axis] for axis in same},
    )
    return msgspec.structs.replace(case, optimizer=msgspec.structs.replace(case.optimizer, kind=kind, **decays))


def _with_table(feature: Feature, drawn: tuple[Feature, ...], width: int) -> Feature:
    owner = feature if feature.table is None else drawn[feature.table]
    return msgspec.structs.replace(feature, table=None, rows=owner.rows, dim=width)
