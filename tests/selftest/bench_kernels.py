"""Systems to be measured, right and wrong, made from plain PyTorch. Loaded by name: `bench_kernels.py:Right`."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import torch

from equivcheck.arithmetic import Arithmetic
from equivcheck.backends.torch_embedding_bag import TorchEmbeddingBag
from equivcheck.backends.torch_tables import Lookup, PlainTables
from equivcheck.case import Case
from equivcheck.outcome import SUPPORTED, Forward, Outcome, Support, unsupported
from equivcheck.problem import Problem


class Right(TorchEmbeddingBag):
    """As it is."""

    def __init__(self) -> None:
        super().__init__("cpu")


class Doubled(Right):
    """Wrong outputs, however small the case."""

    def run(self, problem: Problem) -> Outcome:
        outcome = super().run(problem)
        doubled = [
            replace(result, output=result.output + result.output) if isinstance(result, Forward) else result  # type: ignore[operator]
            for result in outcome.results
        ]
        return replace(outcome, results=tuple(doubled))


class _LosesLookup(PlainTables):
    def forward(self, indices: torch.Tensor, offsets: torch.Tensor, per_sample_weights: torch.Tensor | None) -> Lookup:
        return super().forward(indices.clone().fill_(0), offsets, per_sample_weights)


class WrongAtSize(Right):
    """Right when it is judged, and row 0 for every other when it is measured."""

    def prepare(self, case: Case) -> PlainTables:
        return _LosesLookup(case, self.device)


class Refuses(Right):
    """Takes no case."""

    def supports(self, case: Case) -> Support:
        return unsupported("it takes no cases at all")


class Crashes(Right):
    """Ends its process when it is judged."""

    def run(self, problem: Problem) -> Outcome:
        os.kill(os.getpid(), signal.SIGSEGV)
        return super().run(problem)


class NoMemory(Right):
    """Right, and too large to be measured."""

    def prepare(self, case: Case) -> PlainTables:
        raise RuntimeError("out of memory: 51 GB\nand a trace")


class Untimed:
    """A backend as the suite wants it, without timing."""

    name = "untimed"

    def __init__(self) -> None:
        self._right = Right()

    def supports(self, case: Case) -> Support:
        return SUPPORTED

    def arithmetic(self, case: Case) -> Arithmetic:
        return self._right.arithmetic(case)

    def run(self, problem: Problem) -> Outcome:
        return self._right.run(problem)

    def versions(self) -> dict[str, str]:
        return {}
