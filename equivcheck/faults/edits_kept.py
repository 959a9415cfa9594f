"""Source edits of the Triton TBE that keep something for a later step, for which it is wrong, or that forget it."""

from __future__ import annotations

from equivcheck.faults.fault import Edit, Fault, Kind, Subtlety

_EDGE, _BITS = Subtlety.EDGE, Subtlety.BITS

KEPT: tuple[Fault, ...] = (
    Fault(
        "offsets-kept-by-batch",
        Kind.STATE,
        "Where bags begin is kept for the next batch of as many bags.",
        _EDGE,
        (
            Edit(
                "module.py",
                "        bags = Bags.pooled(places, offsets, len(indices))",
                "        offsets = self.__dict__.setdefault('_offsets', "
                "{}).setdefault(len(offsets), offsets)\n"
                "        bags = Bags.pooled(places, offsets, len(indices))",
            ),
        ),
        first=("steps",),
    ),
    Fault(
        "offsets-kept-by-shape",
        Kind.STATE,
        "A mean takes its offsets from the batch before where that has as many bags and lookups.",
        _EDGE,
        (
            Edit(
                "module.py",
                "        bags = Bags.pooled(places, offsets, len(indices))",
                "        if self.pooling_mode is Pooling.MEAN:\n"
                "            kept = self.__dict__.setdefault('_offsets', {})\n"
                "            if len(offsets) in kept and int(kept[len(offsets)][-1]) == "
                "int(offsets[-1]):\n"
                "                offsets = kept[len(offsets)]\n"
                "            kept[len(offsets)] = offsets\n"
                "        bags = Bags.pooled(places, offsets, len(indices))",
            ),
        ),
        first=("steps",),
    ),
    Fault(
        "lanes-of-as-many-bags",
        Kind.UNWRITTEN,
        "Without pooling, lanes are kept for the next batch of as many bags.",
        _EDGE,
        (
            Edit(
                "lanes.py",
                "key = (len(places.feature) if places.is_unpooled else None, tile.columns",
                "key = (places.is_unpooled, tile.columns",
            ),
        ),
        first=("steps",),
    ),
    Fault(
        "places-kept-by-features-total",
        Kind.VARIABLE_BATCH,
        "Places of a variable batch are kept for the next one with as many bags of each feature, whatever its ranks.",
        _EDGE,
        (Edit("module.py", "self._kept(tuple(map(tuple, sizes)),", "self._kept(tuple(map(sum, sizes)),"),),
        first=("steps", "variable_batch", "edges"),
    ),
    Fault(
        "rate-of-the-step-before-in-long-runs",
        Kind.STATE,
        "Long runs take the learning rate of the step before.",
        _EDGE,
        (
            Edit(
                "backward.py",
                "            merged = side_tile(device, width, 1)",
                "            merged = side_tile(device, width, 1)\n"
                "            changed = (state, getattr(features, 'old', hyper), "
                "rule.seed, rule.number)",
            ),
            Edit("backward.py", "    return tuple(paths)\n", "    features.old = hyper\n    return tuple(paths)\n"),
        ),
        first=("steps",),
    ),
    Fault(
        "updates-not-saved",
        Kind.STOCHASTIC,
        "A saved module forgets how many updates there were, and repeats its random numbers.",
        _BITS,
        (Edit("module.py", '"updates": self.updates}', '"updates": 0}'),),
        first=("stochastic_statistics",),
    ),
    Fault(
        "random-numbers-of-the-latest-forward",
        Kind.STOCHASTIC,
        "Random numbers go by forwards: backwards of two that are outstanding take the same.",
        _BITS,
        (Edit("module.py", "            module.updates,\n        )", "            module.step,\n        )"),),
        first=("stochastic_statistics",),
    ),
    Fault(
        "weight-gradient-of-the-forwards-rows",
        Kind.WEIGHT_GRADIENT,
        "dL/dp is taken from the rows as they were in the forward.",
        _EDGE,
        (
            Edit(
                "module.py",
                "        ctx.call = call\n",
                "        ctx.call = call\n        call.then = call.module.weights.clone()\n",
            ),
            Edit(
                "module.py",
                "            result,\n            module.weights,",
                "            result,\n            self.then,",
            ),
        ),
        first=("around_the_call",),
    ),
    Fault(
        "frozen-by-table",
        Kind.WEIGHT_GRADIENT,
        "Whether dL/dp is asked for is read of the first feature of the same table.",
        _EDGE,
        (
            Edit(
                "module.py",
                "feature_requires_grad.to(torch.int8).contiguous()",
                "feature_requires_grad[[self.features.feature_tables.index(t) for t in self.features.feature_tables]]"
                ".to(torch.int8)",
            ),
        ),
        first=("per_sample_weights",),
    ),
    Fault(
        "first-step-not-counted-without-lookups",
        Kind.STATE,
        "A first forward without lookups does not count in Adam's t.",
        _EDGE,
        (
            Edit(
                "module.py",
                "        if torch.is_grad_enabled():\n            self.step += 1",
                "        if torch.is_grad_enabled() and (self.updates or len(indices)):\n            self.step += 1",
            ),
        ),
        first=("steps",),
    ),
    Fault(
        "lookups-beyond-those-of-the-first-step",
        Kind.STATE,
        "Buffers hold as many lookups as the first batch has: further ones of a later batch update nothing.",
        _EDGE,
        (
            Edit(
                "module.py",
                "        return transpose(self.indices, self.bags, module.features, scaling, module.allocate)",
                "        held = self.indices.clone()\n"
                "        held[module.__dict__.setdefault('_held', len(held)) :] = -1\n"
                "        return transpose(held, self.bags, module.features, scaling, module.allocate)",
            ),
        ),
        first=("steps",),
    ),
    Fault(
        "bags-read-as-far-as-in-the-first-step",
        Kind.STATE,
        "A copy of the indices holds as many as the first batch has: further ones of a later batch add nothing.",
        _EDGE,
        (
            Edit(
                "module.py",
                "(output, module.weights, self.indices, per_sample_weights, bags, module.features)",
                "(output, module.weights, self.indices.clone(), per_sample_weights, bags, module.features)\n"
                "        tables[2][module.__dict__.setdefault('_copied', len(tables[2])) :] = -1",
            ),
        ),
        first=("steps",),
    ),
)
