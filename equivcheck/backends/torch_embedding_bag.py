"""`torch:DEVICE`: plain PyTorch, `F.embedding_bag` and `index_select` with autograd, and an optimizer step in torch.

The device is any that PyTorch knows or that a vendor's package adds; `+inductor` compiles the operations. The system
has no bounds checking of its own (`torch_bounds` repairs), and does not modify its inputs. See docs/devices.md.
"""

from __future__ import annotations

import platform
from dataclasses import replace

import torch

from equivcheck.arithmetic import Arithmetic, MeanDivision, Sequential, Store, StoreRounding
from equivcheck.backends.driver import drive, supports_call
from equivcheck.backends.handshake import handshake
from equivcheck.backends.layouts import TORCH_DTYPES
from equivcheck.backends.torch_devices import is_foreign, open_device, require_package
from equivcheck.backends.torch_inductor import Inductor, check_available
from equivcheck.backends.torch_operators import evidence, parts
from equivcheck.backends.torch_tables import Operations, PlainTables, Tables
from equivcheck.backends.transfers import crossing
from equivcheck.case import Call, Case, IndexType, OptimizerKind, Pooling, Rounding
from equivcheck.formats import DType
from equivcheck.outcome import SUPPORTED, Breach, Outcome, Support, unsupported
from equivcheck.problem import Problem


class TorchEmbeddingBag:
    """PyTorch on one device.

    Parameters
    ----------
    device
        Any device of PyTorch's: `cpu`, `cuda`, `cuda:1`, or one that a plugin adds.
    variants
        `inductor`.

    Raises
    ------
    ValueError
        If a variant is unknown.
    BackendUnavailable
        If PyTorch cannot allocate there, or Inductor lacks its compiler.
    """

    def __init__(self, device: str = "cpu", *variants: str) -> None:
        unknown = [variant for variant in variants if variant != "inductor"]
        if unknown:
            raise ValueError(f"variant {unknown[0]!r} is unknown; torch has inductor")
        self.asked = device or "cpu"
        if is_foreign(self.asked):
            require_package(self.asked)
            evidence(self.asked)  # first of all, and in a process of its own: some devices serve one process at a time
        self.device = open_device(self.asked)
        self.inductor: Inductor | None = None
        if variants:
            check_available(self.device)
            self.inductor = Inductor()
            self.examples = INDUCTOR_EXAMPLES
        self.name = "+".join((f"torch:{self.asked}", *dict.fromkeys(variants)))

    def supports(self, case: Case) -> Support:
        """Everything but accumulation in fp16, what needs CUDA elsewhere, and what the device has shown not to have."""
        if case.accumulation is DType.FP16:
            return unsupported("it accumulates in fp32 or fp64; autograd would sum an fp16 table's gradient in fp16")
        if case.call is Call.GRAPH and self.device.type == "cuda":
            return unsupported("it reads offsets and the touched rows on the host, which a CUDA graph cannot capture")
        if self.inductor is not None and _is_one_embedding_bag(case):
            return unsupported(
                "a forward alone is one embedding_bag, which Inductor leaves to ATen: nothing is compiled"
            )
        if is_foreign(self.asked):
            missing = evidence(self.asked).missing(parts(case))
            if missing:
                return unsupported(missing)
        return supports_call(case.call, self.device)

    def arithmetic(self, case: Case) -> Arithmetic:
        """Sums in the accumulation's type in any order, MEAN by division, correctly rounded quotients.

        Roots are so on CUDA. On a CPU they are MKL's (VML), which promises less than one ulp: torch 2.13's are not the
        nearest number for a fifth of all operands, and up to 0.75 ulp off.

        Beta^t is Python's, in fp64: good to one ulp, 2^-52, which is 2^-28 of fp32's unit roundoff. Inductor's kernels
        for CUDA are Triton's, whose fp32 `/` is `div.full` (2 ulp) and whose `sqrt` may be `sqrt.approx` (3 ulp).
        """
        sums = Sequential(case.accumulation)
        stochastic = case.rounding is Rounding.STOCHASTIC and case.weights is not DType.FP32
        cpu = self.device.type == "cpu"
        approximate = self.inductor is not None and not cpu and case.accumulation is DType.FP32
        return Arithmetic(
            pooling=sums,
            gradient=sums,
            weight_gradient=sums,
            mean_square=sums,
            accumulator=case.accumulation,
            mean_division=MeanDivision.APPROXIMATE if approximate else MeanDivision.DIVISION,
            division=4.0 if approximate else 1.0,
            square_root=6.0 if approximate else 2.0 if cpu else 1.0,
            power=2.0**-28,
            sum_flushes=not cpu,  # index_select's backward adds with fp32 atomics, which flush
            table_store=Store(StoreRounding.STOCHASTIC if stochastic else StoreRounding.NEAREST),
            deterministic=cpu,
        )

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`."""
        lookup = "index_select" if problem.case.pooling is Pooling.NONE else "embedding_bag"
        if self.inductor is None:
            return self._run(problem, Operations(), (f"torch: {lookup}",))
        with self.inductor.watched():
            outcome = self._run(problem, self.inductor.operations, ())
        return replace(
            outcome,
            paths=self.inductor.paths(),
            vacuous="" if outcome.raised is not None else self.inductor.vacuous(),
            notes={**outcome.notes, "recompilations": str(self.inductor.recompilations)},
        )

    def versions(self) -> dict[str, str]:
        """See `Backend`."""
        found = {"torch": torch.__version__, "python": platform.python_version(), "device": str(self.device)}
        if self.device.type == "cuda":
            found["gpu"] = torch.cuda.get_device_name(self.device)
            found["cuda"] = str(torch.version.cuda)
        if self.inductor is not None and self.device.type == "cuda":
            import triton

            found["triton"] = triton.__version__
        return found

    def timing(self) -> Support:
        """Eager operations on devices with a clock that is known here."""
        if self.inductor is not None:
            return unsupported(f"{self.name} compiles its operations for each shape; measure torch without a variant")
        if self.device.type not in ("cpu", "cuda"):
            return unsupported(f"there is no clock for {self.device.type}; cpu and cuda have one")
        return SUPPORTED

    def prepare(self, case: Case) -> PlainTables:
        """See `equivcheck.backends.timed.Timed`."""
        return PlainTables(case, self.device)

    def _run(self, problem: Problem, operations: Operations, paths: tuple[str, ...]) -> Outcome:
        if self.device.type == "cpu":
            return drive(problem, Tables(problem, self.device, operations), paths=paths)
        broken = self._promises(problem.case)
        if broken:  # what such a device computes tells nothing, and running it may end the process
            return Outcome((), breaches=broken, paths=paths, device=str(self.device))
        with crossing() as crossed:
            outcome = drive(problem, Tables(problem, self.device, operations), paths=paths)
        breaches = tuple(dict.fromkeys((*crossed.breaches, *outcome.breaches)))
        return replace(outcome, breaches=breaches, transfers=crossed.transfers())

    def _promises(self, case: Case) -> tuple[Breach, ...]:
        """The promises that the device breaks with the types of a case, or with the operators that it needs."""
        if not is_foreign(self.asked):
            return ()
        integers = torch.int32 if case.indices is IndexType.INT32 else torch.int64
        given = () if case.per_sample_weights is None else (case.per_sample_weights.dtype,)
        state = () if case.optimizer.kind is OptimizerKind.SGD else (DType.FP32,)
        floats = {case.weights, case.output, case.accumulation, *given, *state}
        types = [integers, *(TORCH_DTYPES[dtype] for dtype in sorted(floats))]
        found = [breach for dtype in types for breach in handshake(self.device, dtype)]
        return tuple(dict.fromkeys((*found, *evidence(self.asked).breaches(parts(case)))))


def _is_one_embedding_bag(case: Case) -> bool:
    """Whether all that is computed is sums over bags, neither divided nor rounded to another type."""
    alone = case.call is Call.FORWARD_ONLY and case.pooling is Pooling.SUM
    return alone and case.weights == case.accumulation == case.output


INDUCTOR_EXAMPLES = 0.03
"""Share of a profile's cases that `+inductor` runs: one or two a slice by default. A case compiles up to ten graphs, of
0.3 to 3 s each (two cores, 2026-11-30), so that the whole suite fits into a minute once PyTorch's cache is warm."""
