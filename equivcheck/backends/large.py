"""Tables beyond 2^31 elements: a small case whose rows are spread over tables that no host holds.

Rows that nobody names do not matter to the truth. So the case keeps its few rows, and the truth is computed from it as
from any other; the system gets a first table of more than 2^32 elements, filled on the device, in which the case's rows
lie far apart. An offset of 32 bits then reads or writes another row: what is read there is not what the case says, and
what is written there is seen, because afterwards every element of the large table is looked at on the device.
"""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from equivcheck import words
from equivcheck.arithmetic import Arithmetic
from equivcheck.backends.cuda import identity, watched
from equivcheck.backends.driver import Inputs, Pending, drive
from equivcheck.backends.layouts import to_numpy, to_torch
from equivcheck.backends.protocol import Backend
from equivcheck.backends.timed import Prepared, Timed
from equivcheck.case import BoundsCheck, Call, Case, Decay, Layout, OptimizerKind, Rounding
from equivcheck.outcome import Guard, Outcome, Support, unsupported
from equivcheck.problem import Problem, Snapshot

ELSEWHERE = "large tables are filled on a GPU, and the subject runs elsewhere"
"""A sentence that is the same for every subject, and counted once a case."""
SIGNED, UNSIGNED = 2**31, 2**32
"""Elements from which on a signed or an unsigned number of 32 bits does not hold an element's."""
_BEHIND = 2**20
"""Elements behind the last of those, at least, so that several rows lie there."""
_FILL = 0.75
"""In every element that is no row of the case. Exact in every type, and no sum of exact data."""
_PART = 2**27
"""Elements that are looked at at once."""
_SPARE = 4 * 2**30
"""Bytes of the GPU that are left to the kernels, the output and others."""

_OPTIMIZERS = (OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAGRAD)


@runtime_checkable
class Accessible(Prepared, Protocol):
    """A prepared system whose optimizer state can be read, and whose rate can be set."""

    @property
    def states(self) -> Sequence[Sequence[torch.Tensor]]:
        """Views of each state, one a table: (rows,) or (rows, dim)."""
        ...

    def set_learning_rate(self, rate: float) -> None:
        """The rate of forwards from now on."""
        ...


_ACCESSIBLE: dict[type, bool] = {}
"""Classes of backends, and whether the systems that they prepare can be read."""


class Large:
    """A subject on cases whose first table is made larger than 32 bits can count: a backend beside the subject's own.

    Parameters
    ----------
    backend
        The subject's.
    elements
        How many elements the first table has at least; by default more than 2^32, or, where the optimizer keeps a state
        for each element, more than 2^31.
    anywhere
        Also on the CPU, for tests of this class.
    """

    def __init__(self, backend: Backend, elements: int | None = None, *, anywhere: bool = False) -> None:
        self.name = backend.name
        self._backend = backend
        self._elements = elements
        self._anywhere = anywhere

    def supports(self, case: Case) -> Support:
        """Plain cases of subjects that can be prepared on a GPU with room."""
        device = getattr(self._backend, "device", torch.device("cpu"))
        if device.type != "cuda" and not self._anywhere:
            return unsupported(ELSEWHERE)
        if isinstance(self._backend, Timed) and not (support := self._backend.timing()):
            return support
        for has, what in _beyond(case):
            if has:
                return unsupported(f"tables of more than 2^31 elements are not tried with {what}")
        if not (support := self._backend.supports(case)):
            return support
        if not self._is_accessible(case):
            return unsupported("the subject cannot be given tables that are filled on its device")
        if device.type == "cuda":
            need, free = self._bytes(case), torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
            if need > free:
                return unsupported(f"a table of more than 2^31 elements needs {need:,} bytes, and {free:,} are free")
        return self._backend.supports(self._enlarged(case))

    def arithmetic(self, case: Case) -> Arithmetic:
        """That of the subject."""
        return self._backend.arithmetic(case)

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`. One process a GPU at a time, since not many such tables fit."""
        assert isinstance(self._backend, Timed)
        device = getattr(self._backend, "device", torch.device("cpu"))
        with _alone(device), watched(device), np.errstate(all="ignore"):
            prepared = self._backend.prepare(self._enlarged(problem.case))
            if not isinstance(prepared, Accessible):
                raise TypeError(
                    f"{self.name} prepares a system without optimizer states; see {Accessible.__qualname__}"
                )
            system = Spread(problem, prepared)
            outcome = drive(problem, system, (f"first table of {system.elements:,} elements",))
            del system, prepared
        return outcome

    def versions(self) -> dict[str, str]:
        """Those of the subject."""
        return self._backend.versions()

    def _is_accessible(self, case: Case) -> bool:
        """Whether the subject prepares systems that can be read; found out once, on tables as small as the case's."""
        kind = type(self._backend)
        if kind not in _ACCESSIBLE:
            small = Large(self._backend, 1)._enlarged(case)
            _ACCESSIBLE[kind] = isinstance(self._backend, Timed) and isinstance(
                self._backend.prepare(small), Accessible
            )
        return _ACCESSIBLE[kind]

    def _enlarged(self, case: Case) -> Case:
        """The same options with a first table of so many rows, and no bags."""
        rows, dim = case.table_shapes[0]
        needed = max(-(-self._least(case) // dim), rows)
        features = [msgspec.structs.replace(feature, bags=()) for feature in case.features]
        features[0] = msgspec.structs.replace(features[0], rows=needed)
        return msgspec.structs.replace(case, features=tuple(features), steps=case.steps[:1])

    def _least(self, case: Case) -> int:
        if self._elements is not None:
            return self._elements
        return (SIGNED if case.optimizer.kind is OptimizerKind.ADAGRAD else UNSIGNED) + _BEHIND

    def _bytes(self, case: Case) -> int:
        least, dim = self._least(case), case.table_shapes[0][1]
        states = {OptimizerKind.ADAGRAD: 4 * least, OptimizerKind.ROWWISE_ADAGRAD: 4 * least // dim}
        return least * case.weights.numpy.itemsize + states.get(case.optimizer.kind, 0) + _SPARE


class Spread:
    """A problem's tables in a prepared system, the rows of the first one far apart: the `System` that is driven.

    Attributes
    ----------
    places
        Per table, (rows of the case,) ascending: which rows of the system's table they are.
    elements
        Of the first table.
    """

    def __init__(self, problem: Problem, prepared: Accessible) -> None:
        self.problem, self.device = problem, prepared.device
        self._prepared = prepared
        first = prepared.tables[0]
        self.elements = first.numel()
        self.places = [np.arange(rows, dtype=np.int64) for rows, _ in problem.case.table_shapes]
        rows, dim = first.shape
        self.places[0] = far_apart(len(self.places[0]), rows, dim, problem.case.seed)
        for tensor in self._large():
            tensor.fill_(_FILL)
        self.load(problem.initial, 0)

    def load(self, snapshot: Snapshot, step: int) -> None:
        """See `System`. Row by row: an index operation of PyTorch's would have to count in 64 bits, too."""
        with torch.no_grad():
            for tensors, arrays in zip(self._kinds(), (snapshot.tables, snapshot.momentum1), strict=False):
                for tensor, array, places in zip(tensors, arrays, self.places, strict=True):
                    for place, values in zip(places, to_torch(array), strict=True):
                        tensor[int(place)].copy_(values)

    def set_learning_rate(self, rate: float) -> None:
        """See `System`."""
        self._prepared.set_learning_rate(rate)

    def forward(self, inputs: Inputs) -> Pending:
        """See `System`: the same lookups under the numbers that the rows have here."""
        batch = inputs.batch
        found = batch.indices.copy()
        begin = 0
        for table, bags in zip(self.problem.feature_tables, batch.bags, strict=True):
            named = slice(int(batch.offsets[begin]), int(batch.offsets[begin + bags]))
            found[named] = self.places[table][batch.indices[named]]
            begin += bags
        indices = to_torch(found).to(self.device)
        return self._prepared.forward(indices, inputs.offsets, inputs.per_sample_weights)

    def warnings(self) -> int | None:
        """See `System`: none, since bounds are not checked."""
        return None

    def snapshot(self) -> Snapshot:
        """See `System`: the case's rows."""
        found = [
            tuple(_gathered(tensor, places) for tensor, places in zip(tensors, self.places, strict=True))
            for tensors in self._kinds()
        ]
        return Snapshot(*found)

    def restored(self) -> NoReturn:
        """See `System`; cases that save and load are not tried."""
        raise NotImplementedError("large tables are not saved and loaded")

    def guards(self) -> tuple[Guard, ...]:
        """See `System`: every element of the large table and its states that is no row of the case."""
        guards = []
        for name, tensor in zip(("table 0", "momentum1 of table 0"), self._large(), strict=False):
            changed = np.setdiff1d(changed_rows(tensor, _FILL), self.places[0])
            where = f"rows {', '.join(map(str, changed[:4]))} of " if changed.size else "the other rows of "
            before = np.zeros(1, np.uint8)
            guards.append(Guard(where + name, before, before + (changed.size > 0)))
        return tuple(guards)

    def _kinds(self) -> list[Sequence[torch.Tensor]]:
        return [self._prepared.tables, *self._prepared.states]

    def _large(self) -> list[torch.Tensor]:
        return [tensors[0] for tensors in self._kinds()]


def far_apart(count: int, rows: int, dim: int, seed: int) -> npt.NDArray[np.int64]:
    """(count,) ascending rows of a table of `rows` by `dim`: the last, those around 2^31 and 2^32 elements, and others.

    Raises
    ------
    ValueError
        If the table has fewer rows.
    """
    if count > rows:
        raise ValueError(f"{count} rows cannot be spread over a table of {rows}; give it more")
    edges = [rows - 1, 0]
    for elements in (UNSIGNED, SIGNED, UNSIGNED + SIGNED // 2, SIGNED // 2):
        edges += [elements // dim, elements // dim - 1]
    random = words.words(words.derive(seed, "places"), np.arange(4 * count, dtype=np.int64))
    others = words.integers(random, rows).tolist()
    small = range(rows) if rows < 8 * count else range(0)  # where drawn ones may be too few that differ
    chosen = dict.fromkeys(row for row in (*edges, *others, *small) if 0 <= row < rows)
    return np.sort(np.array(list(chosen)[:count], np.int64))


def changed_rows(tensor: torch.Tensor, fill: float, most: int = 256) -> npt.NDArray[np.int64]:
    """Numbers of rows in which an element is not `fill`, up to about `most` of them; every element is looked at."""
    wide = tensor.view(len(tensor), -1)
    step = max(1, _PART // wide.shape[1])
    found: list[int] = []
    for start in range(0, len(wide), step):
        part = wide[start : start + step]
        rows = (part != fill).any(1).nonzero()[:most, 0]
        found += [start + int(row) for row in rows.tolist()]
        if len(found) > most:
            break
    return np.array(found, np.int64)


def _gathered(tensor: torch.Tensor, places: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
    if not len(places):
        return to_numpy(tensor[:0])
    return to_numpy(torch.stack([tensor[int(place)] for place in places]))


def _beyond(case: Case) -> list[tuple[bool, str]]:
    """What such cases do without."""
    layouts = case.layouts
    plain = {layouts.indices, layouts.offsets, layouts.per_sample_weights, layouts.gradient} == {Layout.CONTIGUOUS}
    return [
        (case.optimizer.kind not in _OPTIMIZERS, f"{case.optimizer.kind}"),
        (case.optimizer.decay is not Decay.NONE, "weight decay"),
        (case.rounding is not Rounding.NEAREST, "stochastic rounding"),
        (case.bounds_check is not BoundsCheck.NONE or bool(case.bad_indices or case.bad_offsets), "a bounds check"),
        (case.ranks > 0, "variable batches"),
        (case.captured is not None, "captured batches"),
        (any(feature.traffic is not None for feature in case.features), "traffic"),
        (any(feature.frozen for feature in case.features), "frozen features"),
        (case.feature_order != 0, "features in another order"),
        (not plain, "layouts other than contiguous"),
        (case.call not in (Call.STEPS, Call.FORWARD_ONLY), f"the call {case.call}"),
        (case.table_shapes[0][0] == 0, "a first table without rows"),
    ]


@contextlib.contextmanager
def _alone(device: torch.device) -> Iterator[None]:
    """Wait for other processes with large tables on this device; give its memory back afterwards."""
    if device.type != "cuda":
        yield
        return
    with Path(tempfile.gettempdir(), f"equivcheck-large-{identity(device)}").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError):  # `watched` sees to a lost context
                torch.cuda.synchronize(device)
                torch.cuda.empty_cache()
