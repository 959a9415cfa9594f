"""A whole Case from a menu: decisions for the case first (swarm testing), then its features, then its data."""

from __future__ import annotations

from typing import TypeVar

from equivcheck import words
from equivcheck.case import (
    BadIndex,
    BadOffset,
    Bag,
    BoundsCheck,
    Call,
    Case,
    Decay,
    Feature,
    IndexFault,
    IndexType,
    Layout,
    Layouts,
    Lookup,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Place,
    Poison,
    Pooling,
    Regime,
    Step,
    Values,
)
from equivcheck.formats import DType
from strategies import data
from strategies.budget import Budget
from strategies.chooser import Chooser, leaning, prefix
from strategies.data import Data, Recipe
from strategies.menu import POWER_DIMS, BagKind, Menu, Sharing
from strategies.structure import Plan, features

T = TypeVar("T")

_SEEDS = tuple(range(64))
_POSITIONS = (0, 0, 1, 2, 3, 5, 7, 31, 63, 255, 1000)
_SIZES = (32, 32, 32, 8, 8, 1)
"""Parts of the budget that a case may use: most are small, so that a second holds many; no edge needs all of it."""


def case(chooser: Chooser, menu: Menu, budget: Budget) -> Case:
    """A case; with every choice the first option, one table of one row, one bag, one lookup, and defaults."""
    forced = chooser.choose(menu.forced)
    return _Drawing(chooser, menu if forced is None else menu.narrowed(forced), forced is not None).case(budget)


class _Drawing:
    def __init__(self, chooser: Chooser, menu: Menu, forced: bool) -> None:
        self._chooser = chooser
        self._choose = chooser.choose
        self._menu = menu
        self._forced = forced
        # One case in three draws every axis evenly, so that rare options meet; in the others defaults prevail.
        self._share = 3 if not chooser.choose((False, False, True)) else 0

    def case(self, budget: Budget) -> Case:
        menu = self._menu
        ranks = self._choose(menu.ranks)
        pooling = self._pick(tuple(p for p in menu.pooling if not ranks or p is not Pooling.NONE) or (Pooling.SUM,))
        recipe = self._choose(menu.recipes)
        recipe_data = recipe.data
        drawn = self._features(budget, ranks, pooling, recipe, recipe_data)
        optimizer = self._optimizer(recipe_data)
        weighted = self._pick(menu.weighted)
        calls = self._pick(menu.calls)
        bounds, bad_indices, bad_offsets = self._bounds()
        return Case(
            features=drawn,
            weights=self._pick(menu.weights),
            output=self._pick(menu.output),
            accumulation=self._choose(menu.accumulation),
            indices=self._indices(drawn),
            pooling=pooling,
            per_sample_weights=None if weighted is None else self._per_sample_weights(weighted, recipe_data),
            optimizer=optimizer,
            rounding=self._pick(menu.rounding),
            bounds_check=bounds,
            bad_indices=bad_indices,
            bad_offsets=bad_offsets,
            ranks=ranks,
            weight_values=self._choose(recipe_data.weights),
            gradient_values=self._choose(recipe_data.gradient),
            state_values=self._state(optimizer, recipe_data),
            poison=self._poison(weighted is not None),
            layouts=self._layouts(bool(ranks), weighted is not None),
            call=calls,
            steps=self._steps(calls, recipe_data),
            feature_order=self._order(drawn, ranks),
            lookup_order=self._pick(_SEEDS[:8]),
            seed=self._choose(_SEEDS),
        )

    def _pick(self, options: tuple[T, ...]) -> T:
        """One of the options; in most cases leaning towards the first."""
        if len(options) == 1:
            return options[0]
        return leaning(self._chooser, options, self._share) if self._share else self._choose(options)

    def _features(
        self, budget: Budget, ranks: int, pooling: Pooling, recipe: Recipe, recipe_data: Data
    ) -> tuple[Feature, ...]:
        menu = self._menu
        dims = self._choose(menu.dims)
        if recipe is Recipe.SQUARES:
            dims = tuple(dim for dim in dims if dim in _POWERS) or POWER_DIMS
        dims = tuple(dim for dim in dims if dim >= recipe_data.least_dim) or dims
        count = self._choose(menu.feature_counts)
        parts = 1 if self._forced or count or len(menu.hot) > 1 else self._choose(_SIZES)
        hot = self._choose(prefix(menu.hot, budget.work // 2))
        plan = Plan(
            dims=dims,
            rows=menu.rows,
            times=self._choose(menu.times),
            copies=menu.copies,
            kinds=menu.kinds,
            traffic_bags=menu.traffic_bags,
            traffic_lengths=(1, 2, 4, 8, 16, 32) if recipe_data.exact and len(menu.traffic_lengths) > 1
            else menu.traffic_lengths,
            distributions=menu.distributions,
            frozen=menu.frozen,
            sharing=self._pick(menu.sharing),
            features_most=menu.features_most,
            feature_count=count,
            ranks=ranks,
            hot=hot,
            rowless=self._choose(menu.rowless),
            one_dim=pooling is Pooling.NONE,
            round_lengths=pooling is Pooling.MEAN and recipe_data.exact,
            most_lookups=recipe_data.most_lookups,
        )
        drawn = features(self._chooser, plan, budget.divided(parts * self._menu.steps[0]))
        if self._choose(menu.empty):
            return tuple(_without_lookups(feature) for feature in drawn)
        if Case(features=drawn, ranks=ranks).lookups:
            return drawn
        first = drawn[0]
        bags = (Bag((Lookup(),)), *first.bags)
        return (Feature(first.rows, first.dim, first.table, bags, None, first.frozen), *drawn[1:])

    def _indices(self, drawn: tuple[Feature, ...]) -> IndexType:
        drawn_type = self._pick(self._menu.indices)
        return IndexType.INT64 if any(feature.rows > 2**31 - 1 for feature in drawn) else drawn_type

    def _optimizer(self, recipe: Data) -> Optimizer:
        menu = self._menu
        kind = self._pick(menu.optimizers)
        rate = self._pick(recipe.learning_rates)
        if kind is OptimizerKind.SGD:
            return Optimizer(kind, rate)
        eps = self._pick(recipe.eps)
        decay = self._pick(menu.decay) if kind is OptimizerKind.ROWWISE_ADAGRAD else Decay.NONE
        if decay is not Decay.NONE:
            return Optimizer(kind, rate, eps, decay=decay, weight_decay=self._pick(data.WEIGHT_DECAYS))
        if kind in (OptimizerKind.ADAM, OptimizerKind.PARTIAL_ROWWISE_ADAM):
            return Optimizer(
                kind,
                rate,
                eps,
                beta1=self._pick(data.BETAS1),
                beta2=self._pick(data.BETAS2),
                weight_decay=self._pick((0.0, *data.WEIGHT_DECAYS)),
                step=self._pick(menu.adam_steps),
            )
        return Optimizer(kind, rate, eps)

    def _per_sample_weights(self, dtype: DType, recipe: Data) -> PerSampleWeights:
        return PerSampleWeights(
            dtype, self._choose(recipe.per_sample_weights), self._choose(self._menu.weight_gradient)
        )

    def _state(self, optimizer: Optimizer, recipe: Data) -> Values:
        if optimizer.kind is OptimizerKind.SGD:  # has none
            return Values(Regime.ZEROS)
        return self._choose(recipe.state)

    def _bounds(self) -> tuple[BoundsCheck, tuple[BadIndex, ...], tuple[BadOffset, ...]]:
        menu = self._menu
        mode = self._pick(menu.bounds)
        if mode is BoundsCheck.NONE:
            if IndexFault.PRUNED in menu.index_faults and self._choose((False,) * 24 + (True,)):
                return mode, (BadIndex(IndexFault.PRUNED, self._choose(_POSITIONS)),), ()
            return mode, (), ()
        indices = self._chooser.several(
            lambda: BadIndex(self._choose(menu.index_faults), self._choose(_POSITIONS)), 3, (False, True)
        )
        offsets: list[BadOffset] = []
        if menu.offset_faults and self._choose((False, False, True)):
            offsets = self._chooser.several(
                lambda: BadOffset(self._choose(menu.offset_faults), self._choose(_POSITIONS)), 2, (False, True)
            )
        return mode, tuple(indices) if menu.index_faults else (), tuple(offsets)

    def _poison(self, weighted: bool) -> tuple[Poison, ...]:
        drawn = self._pick(self._menu.poison)
        if drawn is None or (drawn[0] is Place.PER_SAMPLE_WEIGHT and not weighted):
            return ()
        return (Poison(*drawn, self._choose(_POSITIONS)),)

    def _layouts(self, flat: bool, weighted: bool) -> Layouts:
        if len(self._menu.layouts) == 1 or not self._choose((False, False, True)):
            return Layouts()
        inputs = tuple(x for x in self._menu.layouts if x not in (Layout.EXPANDED, Layout.TRANSPOSED))
        gradients = tuple(x for x in self._menu.layouts if not flat or x is not Layout.TRANSPOSED)
        return Layouts(
            indices=self._pick(inputs),
            offsets=self._pick(inputs),
            per_sample_weights=self._pick(inputs) if weighted else Layout.CONTIGUOUS,
            gradient=self._choose(gradients),
        )

    def _steps(self, call: Call, recipe: Data) -> tuple[Step, ...]:
        counts = self._menu.steps
        if call in (Call.OUTSTANDING, Call.RESTORED):  # one step would not show either
            counts = tuple(count for count in counts if count > 1) or (2,)
        later = self._pick(counts) - 1
        return (Step(), *(self._step(number + 1, recipe) for number in range(later)))

    def _step(self, number: int, recipe: Data) -> Step:
        return Step(
            learning_rate=self._pick((None, *recipe.learning_rates)),
            shift=self._choose((0, 0, 1, 5)),
            bags=self._pick((None, 1, 0, 2)),
            seed=self._choose((0, 1)),
        )

    def _order(self, drawn: tuple[Feature, ...], ranks: int) -> int:
        """A seed that permutes the features; one that keeps the map unsorted, where that was asked for."""
        if len(drawn) == 1:
            return 0
        seed = self._pick(_SEEDS[:12])
        if self._menu.sharing == (Sharing.UNSORTED,):
            tables = Case(features=drawn, ranks=ranks).tables
            permuted = [tables[i] for i in words.permutation(seed, len(tables))]
            return 0 if permuted == sorted(permuted) else seed
        return seed


_POWERS = frozenset(POWER_DIMS)


def _without_lookups(feature: Feature) -> Feature:
    bags = tuple(Bag((), bag.copies, bag.rank) for bag in feature.bags)
    return Feature(feature.rows, feature.dim, feature.table, bags, None, feature.frozen)


__all__ = ["BagKind", "case"]
