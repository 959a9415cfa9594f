"""A whole Case from a menu: decisions for the case first (swarm testing), then its features, then its data."""

from __future__ import annotations

from bisect import bisect_left
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
from strategies.chooser import Axis, Chooser, draw_up_to, smallest
from strategies.data import Data, Recipe
from strategies.menu import Menu, Sharing
from strategies.structure import Plan, features

T = TypeVar("T")

_SEEDS = tuple(range(64))
_POSITIONS = (0, 0, 1, 2, 3, 5, 7, 31, 63, 255, 1000)


def case(chooser: Chooser, menu: Menu, budget: Budget) -> Case:
    """A case; with every choice the first option, one table of one row, one bag, one lookup, and defaults."""
    return _Drawing(chooser, menu).case(budget)


class _Drawing:
    def __init__(self, chooser: Chooser, menu: Menu) -> None:
        self._chooser = chooser
        self._choose = chooser.choose
        self._menu = menu
        self._pins = menu.pinned[chooser.position(0, len(menu.forced) - 1)]
        # One case in three draws every axis evenly, so that rare options meet; in the others defaults prevail.
        self._even = chooser.choose((False, False, True))

    def case(self, budget: Budget) -> Case:
        """Structure first, then everything else, in one order for every case."""
        menu = self._menu
        ranks = 0 if menu.pooling == (Pooling.NONE,) else self._draw("ranks", menu.ranks)
        pooling = self._lean("pooling", menu.pooling)
        if ranks and pooling is Pooling.NONE:  # a variable batch without pooling has no output
            pooling = Pooling.SUM
        recipe = self._draw("recipes", menu.recipes)
        drawn = self._features(budget, ranks, pooling, recipe)
        values = recipe.data
        optimizer = self._optimizer(values)
        weighted = self._lean("weighted", menu.weighted)
        call = self._draw("calls", menu.calls)
        bounds, bad_indices, bad_offsets = self._bounds()
        return Case(
            features=drawn,
            weights=self._lean("weights", menu.weights),
            output=self._lean("output", menu.output),
            accumulation=self._draw("accumulation", menu.accumulation),
            indices=self._indices(drawn),
            pooling=pooling,
            per_sample_weights=None if weighted is None else self._per_sample_weights(weighted, values),
            optimizer=optimizer,
            rounding=self._lean("rounding", menu.rounding),
            bounds_check=bounds,
            bad_indices=bad_indices,
            bad_offsets=bad_offsets,
            ranks=ranks,
            weight_values=self._choose(values.weights),
            gradient_values=self._choose(values.gradient),
            state_values=self._state(optimizer, values),
            poison=self._poison(weighted is not None),
            layouts=self._layouts(bool(ranks), weighted is not None),
            call=call,
            steps=self._steps(call, values),
            feature_order=self._order(drawn, ranks),
            lookup_order=self._lean("lookup_order", _SEEDS[:8]),
            seed=self._choose(_SEEDS),
        )

    def _axis(self, name: str, options: tuple[T, ...]) -> Axis[T]:
        return Axis(options, *self._pins.get(name, (0, len(options) - 1)))

    def _allowed(self, name: str, options: tuple[T, ...]) -> tuple[T, ...]:
        """The options of an axis that a forced pair leaves."""
        least, most = self._pins.get(name, (0, len(options) - 1))
        return options[least : most + 1]

    def _draw(self, name: str, options: tuple[T, ...]) -> T:
        """One of the options of an axis, as often as it is listed."""
        return options[0] if len(options) == 1 else self._axis(name, options).draw(self._chooser)

    def _lean(self, name: str, options: tuple[T, ...]) -> T:
        """One of the options of an axis; in two cases of three, the first three times as often as all others."""
        others = len(options) - 1
        if not others:
            return options[0]
        # The first option has many positions. Even cases and forced pairs use some positions only (see Axis).
        first = 3 * others - 1
        least, most = (first if self._even else 0), first + others
        if name in self._pins:
            least, most = (first + position for position in self._pins[name])
        return options[max(self._chooser.position(least, most) - first, 0)]

    def _features(self, budget: Budget, ranks: int, pooling: Pooling, recipe: Recipe) -> tuple[Feature, ...]:
        menu = self._menu
        values = recipe.data
        listed = self._choose(menu.dims)
        dims = Axis(listed, bisect_left(listed, values.least_dim) if listed[-1] >= values.least_dim else 0)
        count = self._draw("feature_counts", menu.feature_counts)
        size = self._choose(menu.sizes)
        sharing = self._draw("sharing", menu.sharing)
        # What is repeated, or added to share a table for sure, is paid for beforehand.
        each = budget.divided(max(1, count) * (3 if sharing in (Sharing.SURELY, Sharing.UNSORTED) else 1))
        longest = min(each.work // (2 * smallest(dims)), values.most_lookups)
        hot = draw_up_to(self._axis("hot", menu.hot), self._chooser, longest)
        plan = Plan(
            dims=dims,
            rows=self._axis("rows", menu.rows),
            times=Axis(self._choose(menu.times)),
            copies=Axis(menu.copies),
            kinds=self._axis("kinds", menu.kinds),
            traffic_bags=self._axis("traffic_bags", menu.traffic_bags),
            traffic_lengths=self._axis("traffic_lengths", menu.traffic_lengths),
            distributions=self._axis("distributions", menu.distributions),
            frozen=Axis(menu.frozen),
            sharing=sharing,
            feature_parts=self._allowed("feature_parts", menu.feature_parts),
            feature_count=count,
            ranks=ranks,
            hot=hot if hot <= longest else 0,
            widest=self._draw("widest", menu.widest),
            rowless=self._choose(menu.rowless),
            one_dim=pooling is Pooling.NONE,
            power_dims=recipe in (Recipe.SQUARES, Recipe.ROOTS),
            round_lengths=pooling is Pooling.MEAN and values.exact,
            spread=self._axis("spread", menu.spread),
            longest_uneven=menu.longest_uneven,
            most_lookups=values.most_lookups,
        )
        whole = count or hot or "kinds" in self._pins or len(menu.kinds) == 1
        drawn = features(self._chooser, plan, each if whole else each.divided(size))
        if self._choose(menu.empty):
            return tuple(_without_lookups(feature) for feature in drawn)
        if Case(features=drawn, ranks=ranks).lookups:
            return drawn
        first = drawn[0]
        bags = (Bag((Lookup(),)), *first.bags)
        return (Feature(first.rows, first.dim, first.table, bags, None, first.frozen), *drawn[1:])

    def _indices(self, drawn: tuple[Feature, ...]) -> IndexType:
        drawn_type = self._lean("indices", self._menu.indices)
        return IndexType.INT64 if any(feature.rows > 2**31 - 1 for feature in drawn) else drawn_type

    def _optimizer(self, recipe: Data) -> Optimizer:
        menu = self._menu
        kind = self._lean("optimizers", menu.optimizers)
        rate = self._lean("learning_rates", recipe.learning_rates)
        if kind is OptimizerKind.SGD:
            return Optimizer(kind, rate)
        eps = self._lean("eps", recipe.eps)
        decay = self._lean("decay", menu.decay) if kind is OptimizerKind.ROWWISE_ADAGRAD else Decay.NONE
        if decay is not Decay.NONE:
            return Optimizer(kind, rate, eps, decay=decay, weight_decay=self._lean("weight_decay", data.WEIGHT_DECAYS))
        if kind in (OptimizerKind.ADAM, OptimizerKind.PARTIAL_ROWWISE_ADAM):
            return Optimizer(
                kind,
                rate,
                eps,
                beta1=self._lean("beta1", data.BETAS1),
                beta2=self._lean("beta2", menu.beta2),
                weight_decay=self._lean("weight_decay", (0.0, *data.WEIGHT_DECAYS)),
                step=self._lean("adam_steps", menu.adam_steps),
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
        mode = self._lean("bounds", menu.bounds)
        if mode is BoundsCheck.NONE:
            if IndexFault.PRUNED in menu.index_faults and self._choose((False,) * 24 + (True,)):
                return mode, (BadIndex(IndexFault.PRUNED, self._choose(_POSITIONS)),), ()
            return mode, (), ()
        indices = (
            self._chooser.several(self._bad_index, self._allowed("index_counts", menu.index_counts))
            if menu.index_faults
            else []
        )
        offsets = (
            self._chooser.several(self._bad_offset, self._allowed("offset_counts", menu.offset_counts))
            if menu.offset_faults
            else []
        )
        return mode, tuple(indices), tuple(offsets)

    def _bad_index(self) -> BadIndex:
        return BadIndex(self._choose(self._allowed("index_faults", self._menu.index_faults)), self._choose(_POSITIONS))

    def _bad_offset(self) -> BadOffset:
        positions = self._allowed("offset_positions", self._menu.offset_positions)
        return BadOffset(self._choose(self._menu.offset_faults), self._choose(positions))

    def _poison(self, weighted: bool) -> tuple[Poison, ...]:
        drawn = self._draw("poison", self._menu.poison)
        if drawn is None or (drawn[0] is Place.PER_SAMPLE_WEIGHT and not weighted):
            return ()
        return (Poison(*drawn, self._choose(_POSITIONS)),)

    def _layouts(self, flat: bool, weighted: bool) -> Layouts:
        if len(self._menu.layouts) == 1 or not self._choose((False, False, True)):
            return Layouts()
        inputs = tuple(x for x in self._menu.layouts if x not in (Layout.EXPANDED, Layout.TRANSPOSED))
        gradient = self._choose(self._menu.layouts)
        return Layouts(
            indices=self._lean("layouts", inputs),
            offsets=self._lean("layouts", inputs),
            per_sample_weights=self._lean("layouts", inputs) if weighted else Layout.CONTIGUOUS,
            gradient=Layout.CONTIGUOUS if flat and gradient is Layout.TRANSPOSED else gradient,
        )

    def _steps(self, call: Call, recipe: Data) -> tuple[Step, ...]:
        count = self._lean("steps", self._menu.steps)
        if call in (Call.OUTSTANDING, Call.RESTORED):  # one step would not show either
            count = max(count, 2)
        growing = count > 1 and self._draw("growing", self._menu.growing)
        others = tuple(self._step(recipe) for _ in range(count - 1))
        return (*others, Step()) if growing else (Step(), *others)

    def _step(self, recipe: Data) -> Step:
        return Step(
            learning_rate=self._lean("learning_rates", (None, *recipe.learning_rates)),
            shift=self._choose((0, 0, 1, 5)),
            bags=self._lean("bags", (None, 1, 0, 2)),
            seed=self._choose((0, 1)),
            lookups=self._lean("kept", self._menu.kept),
            turn=self._choose((0, 1, 2)),
        )

    def _order(self, drawn: tuple[Feature, ...], ranks: int) -> int:
        """A seed that permutes the features; one that keeps the map unsorted, where that was asked for."""
        if len(drawn) == 1:
            return 0
        seed = self._lean("orders", self._menu.orders)
        if Sharing.UNSORTED in self._menu.sharing:
            tables = Case(features=drawn, ranks=ranks).tables
            permuted = [tables[i] for i in words.permutation(seed, len(tables))]
            if permuted == sorted(permuted) and list(tables) != sorted(tables):
                return 0
        return seed


def _without_lookups(feature: Feature) -> Feature:
    bags = tuple(Bag((), bag.copies, bag.rank) for bag in feature.bags)
    return Feature(feature.rows, feature.dim, feature.table, bags, None, feature.frozen)
