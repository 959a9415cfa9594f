"""Stand-alone scripts for bug reports: torch and the system under test, arrays, and an assertion that fails today."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import BoundsCheck, Call, CaseError, Layout, Rounding
from equivcheck.engine.show import failure
from equivcheck.formats import AnyArray, Float64Array
from equivcheck.oracle import expect
from equivcheck.oracle.expectation import Bounds, ForwardExpectation, TableExpectation, UpdateExpectation
from equivcheck.outcome import Outcome, Update
from equivcheck.problem import Action, Problem, Snapshot, program, split_by_feature
from equivcheck.script_systems import Lines, system
from equivcheck.verdict import Discrepancy, Status, Symptom, Tensor, Verdict

_LITERAL = 256
"""Elements up to which an array is written out; beyond, it is packed."""

_GUARD = 2048
"""Elements around the tables: a row of the widest tables that FBGEMM takes on CUDA."""
_DTYPES = {
    "float32": "torch.float32",
    "float16": "torch.float16",
    "bfloat16": "torch.bfloat16",
    "float64": "torch.float64",
    "int32": "torch.int32",
    "int64": "torch.int64",
}
_HERE = Path(__file__).parent
_INSTALLED = re.compile(r'File ".*/site-packages/')
"""Where the reporter's packages lie, which is nobody's business upstream."""
_ELEMENTS = (Tensor.OUTPUT, Tensor.ROWS, Tensor.MOMENTUM1, Tensor.MOMENTUM2, Tensor.UNTOUCHED, Tensor.WEIGHT_GRADIENT)


@dataclass(frozen=True)
class Evidence:
    """What a script is to show.

    Attributes
    ----------
    title
        Its first line.
    subject
        The name under which the system is a subject.
    problem, verdict
        What failed, and how.
    arithmetic
        Its rounding, from which the allowed values follow.
    outcome
        What it did; None where its process ended, or it does not run here.
    versions
        Of the system, where it failed.
    """

    title: str
    subject: str
    problem: Problem
    verdict: Verdict
    arithmetic: Arithmetic
    outcome: Outcome | None
    versions: Mapping[str, str]


def script(evidence: Evidence) -> str:
    """The script's text.

    Raises
    ------
    CaseError
        If the system, the way of calling it, or the kind of failure has no script.
    """
    case = evidence.problem.case
    if case.call is Call.GRAPH:
        raise CaseError("a script of a captured CUDA graph is not written; take a case that fails without one")
    lines = system(evidence.subject, evidence.problem)
    discrepancy = _shown(evidence.verdict)
    calls = _calls(evidence, lines, discrepancy)
    checks = _checks(evidence, discrepancy, lines)
    raising = discrepancy is not None and discrepancy.symptom in (Symptom.RAISED, Symptom.NOT_RAISED)
    guarded = _is_guarded(evidence, discrepancy)
    initial = evidence.problem.initial
    tables = [literal(table) for table in initial.tables]
    states = [
        (table, number, literal(array))
        for number, arrays in enumerate(filter(None, (initial.momentum1, initial.momentum2)))
        for table, array in enumerate(arrays)
    ]
    steps = [{"arrays": _arrays(evidence.problem, step)} for step in range(len(case.steps))]
    return _template().render(
        title=evidence.title,
        story=_story(evidence),
        torchrec=lines.torchrec,
        names_for_amd=lines.names_for_amd,
        imports=lines.imports,
        device=lines.device,
        seed=case.seed if case.rounding is Rounding.STOCHASTIC else None,
        deterministic=lines.deterministic,
        build=lines.build,
        guard=_GUARD,
        guarded=lines.memory if guarded else (),
        tables=tables,
        states=states,
        after_load=lines.after_load,
        steps=steps,
        raising=raising,
        synchronize="torch.cuda.synchronize()" if lines.device == "cuda" else "pass",
        calls=calls,
        checks=checks,
        elements=any(line.startswith("check(") for line in checks),
        packed="unpack(" in repr((tables, states, steps, checks)),
    )


def literal(array: AnyArray) -> str:
    """An expression that makes a tensor with exactly these elements."""
    dtype = _DTYPES[array.dtype.name]
    shape = tuple(int(n) for n in array.shape)
    if array.size and (array.view(f"u{array.dtype.itemsize}") == array.view(f"u{array.dtype.itemsize}").flat[0]).all():
        return f"torch.full({shape}, {_number(array.flat[0])}, dtype={dtype})"
    if array.size <= _LITERAL:
        return f"torch.tensor({_nested(array)}, dtype={dtype})" + (f".reshape({shape})" if not array.size else "")
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()
    quoted = "".join(f'\n    "{data[i : i + 100]}"' for i in range(0, len(data), 100))
    return f"unpack({quoted},\n    {dtype},\n    {shape},\n)"


def _shown(verdict: Verdict) -> Discrepancy | None:
    """The discrepancy that the script shows: one of elements before others, since those say most. None for a crash."""
    if verdict.status in (Status.CRASHED, Status.TIMEOUT):
        return None
    ranked = sorted(verdict.discrepancies, key=lambda d: (d.tensor not in _ELEMENTS, d.tensor is Tensor.GUARDS))
    if not ranked:
        raise CaseError(f"the case is {verdict.status} on this subject: there is nothing for a script to show")
    return ranked[0]


def _is_guarded(evidence: Evidence, shown: Discrepancy | None) -> bool:
    """Whether the script lays the tables into memory of its own.

    What lies around them in a fresh process is often zeros. A row read from there then adds nothing to an output, and
    a row written there is missed by nobody.
    """
    if shown is None or shown.tensor not in (*_ELEMENTS, Tensor.GUARDS):
        return False
    seen = any(found.tensor is Tensor.GUARDS for found in evidence.verdict.discrepancies)
    return seen or bool(evidence.problem.case.bad_indices)


def _story(evidence: Evidence) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in evidence.versions.items())
    lines = [f"Seen with {versions or 'unknown versions'}.", ""]
    told = [line for line in failure(evidence.problem.case, evidence.verdict) if not _is_ours(line)]
    return [*lines, *(_INSTALLED.sub('File "', line).replace("\\", "/") for line in told[:12])]


def _is_ours(line: str) -> bool:
    """Whether a line names this package's source, as traces of a process that crashed do."""
    return line.lstrip().startswith(f'File "{_HERE}')


def _arrays(problem: Problem, step: int) -> list[tuple[str, str]]:
    batch, layouts = problem.batches[step], problem.case.layouts
    chosen = {"grad_output": layouts.gradient}
    found = []
    for name, array in batch.arrays:
        layout = chosen.get(name) or getattr(layouts, name)
        value = _laid_out(f"{literal(array)}.to(device)", array, layout)
        spec = problem.case.per_sample_weights
        if name == "per_sample_weights" and spec is not None and spec.gradient:
            value += ".requires_grad_()"
        found.append((f"{name}_{step}", value))
    return found


def _laid_out(value: str, array: AnyArray, layout: Layout) -> str:
    """A copy of a tensor in another layout: a view into something larger, filled with 7."""
    size = array.size
    flat = f"{value}.reshape(-1)"
    match layout:
        case Layout.CONTIGUOUS:
            return value
        case Layout.MISALIGNED:
            return f"torch.cat([{flat}[:1], {flat}])[1:].view({tuple(array.shape)})" if size else value
        case Layout.EXPANDED:
            return f"{flat}[:1].expand({tuple(array.shape)})" if size else value
        case Layout.TRANSPOSED:
            return f"{value}.t().contiguous().t()"
        case Layout.STRIDED if array.ndim == 1:
            return f"torch.stack([{value}, torch.full_like({value}, 7)], 1).view(-1)[::2]"
        case Layout.STRIDED:
            wide = f"torch.stack([{value}, torch.full_like({value}, 7)], 2).flatten(1)"
            return f"torch.stack([{wide}, {wide}], 1).flatten(0, 1)[::2, ::2]"
        case Layout.SLICE if array.ndim == 1:
            return f"torch.cat([{flat}[:1].expand(3), {flat}])[3:]" if size else value
        case Layout.SLICE:
            return f"torch.cat([{value}, torch.full_like({value}, 7)[:, :1].expand(-1, 3)], 1)[:, : {array.shape[1]}]"


def _calls(evidence: Evidence, lines: Lines, shown: Discrepancy | None) -> list[str]:
    """The calls of the case's program, up to the one that is wrong; all, where one of them writes around the tables."""
    problem = evidence.problem
    case = problem.case
    actions = program(case)
    last = len(actions) - 1 if shown is None or shown.action < 0 else shown.action
    found_in = {found.tensor for found in evidence.verdict.discrepancies}
    if (
        shown is not None
        and shown.tensor is Tensor.OUTPUT
        and Tensor.GUARDS in found_in
        and Tensor.CALL not in found_in
    ):
        last = len(actions) - 1  # an output stays as it is
    found = []
    for action, step in actions[: last + 1]:
        rate = problem.batches[step].learning_rate
        if action is Action.FORWARD:
            found += [lines.rate.format(rate), *lines.before_forward(problem, step)]
            found.append(f"output_{step} = {lines.forward(problem, step)}")
            if case.call is Call.RATE_CHANGED:
                found.append(lines.rate.format(2 * rate + 1))
        else:
            retain = ", retain_graph=True" if case.call is Call.RETAINED else ""
            weights = case.per_sample_weights
            if weights is not None and weights.gradient:
                found.append(f"per_sample_weights_{step}.grad = None")
            found.append(f"output_{step}.backward(grad_output_{step}{retain})")
            if case.call is Call.RESTORED:
                found += lines.restore
    if case.call is Call.SIDE_STREAM:
        inside = [f"    {line}" for line in found]
        stream = "with torch.cuda.stream(torch.cuda.Stream()):"
        found = ["torch.cuda.synchronize()", stream, *inside, "torch.cuda.synchronize()"]
    return found


def _checks(evidence: Evidence, found: Discrepancy | None, lines: Lines) -> list[str]:
    """What must hold after the calls."""
    if found is None:
        return [*(["torch.cuda.synchronize()"] if lines.device == "cuda" else []), *_everything(evidence)]
    step = program(evidence.problem.case)[max(found.action, 0)][1]
    if found.symptom is Symptom.RAISED:
        return ['assert raised is None, f"{type(raised).__name__}: {raised}"']
    if found.symptom is Symptom.NOT_RAISED:
        return ['assert raised is not None, "inputs out of bounds were not refused"']
    if found.symptom is Symptom.MISSING and found.tensor is Tensor.WEIGHT_GRADIENT:
        return [f'assert per_sample_weights_{step}.grad is not None, "per_sample_weights got no gradient"']
    if found.tensor is Tensor.WARNINGS:
        return [
            "warnings = int(tbe.bounds_check_warning.item())",
            f'assert {int(found.low)} <= warnings <= {int(found.high)}, f"{{warnings}} warnings"',
        ]
    around = [f'check_around("{name}")' for name in lines.memory] if _is_guarded(evidence, found) else []
    if found.tensor is Tensor.GUARDS:
        return around
    if found.tensor is Tensor.INPUTS:
        name = found.where.partition(" of step ")[0]
        array = dict(evidence.problem.batches[step].arrays).get(name)
        if array is not None:
            same = f"torch.equal({name}_{step}.cpu(), {literal(array)})"
            return [f'assert {same}, "{name} were modified"']
    if found.tensor in _ELEMENTS and found.symptom not in (Symptom.SHAPE, Symptom.DTYPE, Symptom.MISSING):
        first = _output_checks(evidence, found.action) if around and found.tensor is not Tensor.OUTPUT else []
        return [*first, *_element_checks(evidence, found, step), *around]
    raise CaseError(f"a script that shows {found.tensor}: {found.symptom} is not written")


def _output_checks(evidence: Evidence, before: int) -> list[str]:
    """A comparison of the last output up to a position in the program, where outputs are wrong as well."""
    if all(found.tensor is not Tensor.OUTPUT for found in evidence.verdict.discrepancies):
        return []
    actions = list(enumerate(program(evidence.problem.case)))[: before + 1]
    position, step = next((i, step) for i, (action, step) in reversed(actions) if action is Action.FORWARD)
    return _element_checks(evidence, Discrepancy(Tensor.OUTPUT, Symptom.OUT_OF_BOUND, position, ""), step)


def _everything(evidence: Evidence) -> list[str]:
    """Comparisons of all results of a case of one step, for a process that ends in one run and is wrong in another."""
    case = evidence.problem.case
    refused = case.bounds_check is BoundsCheck.FATAL and (case.bad_indices or case.bad_offsets)
    if refused or len(case.steps) > 1 or case.call not in (Call.STEPS, Call.FORWARD_ONLY):
        return []
    lines = []
    for position, (action, step) in enumerate(program(case)):
        tensors = [Tensor.OUTPUT] if action is Action.FORWARD else [Tensor.UNTOUCHED]
        if action is Action.BACKWARD and case.per_sample_weights is not None and case.per_sample_weights.gradient:
            tensors.append(Tensor.WEIGHT_GRADIENT)
        for tensor in tensors:
            lines += _element_checks(evidence, Discrepancy(tensor, Symptom.OUT_OF_BOUND, position, ""), step)
    return lines


def _element_checks(evidence: Evidence, found: Discrepancy, step: int) -> list[str]:
    """A comparison of the whole tensor with the values that are allowed."""
    problem = evidence.problem
    befores = [problem.initial]
    for result in evidence.outcome.results if evidence.outcome is not None else ():
        befores.append(result.after if isinstance(result, Update) and result.after is not None else befores[-1])
    actions = program(problem.case)[: found.action + 1]
    if len(befores) < len(actions):
        befores += [befores[-1]] * (len(actions) - len(befores))
    expectation = expect(problem, evidence.arithmetic, befores[: len(actions)])
    call = expectation.calls[found.action]
    if isinstance(call, ForwardExpectation):
        batch = replace(problem.batches[step], offsets=expectation.offsets[step].repaired)
        positions = np.arange(int(np.prod(call.output_shape))).reshape(call.output_shape)
        low, high = np.full(positions.size, -np.inf), np.full(positions.size, np.inf)
        for bounds, block in zip(call.outputs, split_by_feature(positions, problem, batch), strict=True):
            low[block], high[block] = _ends(bounds)
        return [_check("output", f"output_{step}", low.reshape(positions.shape), high.reshape(positions.shape))]
    if found.tensor is Tensor.WEIGHT_GRADIENT and call.weight_gradient is not None:
        low, high = (end[:, 0] for end in _ends(call.weight_gradient))
        return [_check("per_sample_weights.grad", f"per_sample_weights_{step}.grad", low, high)]
    return _state_checks(call, found.tensor, befores[found.action])


def _state_checks(call: UpdateExpectation, tensor: Tensor, before: Snapshot) -> list[str]:
    """Every row of every table, or of one of its states: those that no lookup names are as they were."""
    lines = []
    of: dict[Tensor, Callable[[TableExpectation], Bounds | None]] = {
        Tensor.ROWS: lambda table: table.rows,
        Tensor.MOMENTUM1: lambda table: table.momentum1,
        Tensor.MOMENTUM2: lambda table: table.momentum2,
    }
    arrays = {Tensor.ROWS: before.tables, Tensor.MOMENTUM1: before.momentum1, Tensor.MOMENTUM2: before.momentum2}
    names = {Tensor.ROWS: "tables[{}]", Tensor.MOMENTUM1: "states[{}][0]", Tensor.MOMENTUM2: "states[{}][1]"}
    for kind in of if tensor is Tensor.UNTOUCHED else (tensor,):
        for number, table in enumerate(call.tables):
            bounds = of[kind](table)
            if bounds is None or not arrays[kind][number].size:
                continue
            low = arrays[kind][number].astype(np.float64)
            high = low.copy()
            least, most = (end[:, 0] if low.ndim == 1 else end for end in _ends(bounds))
            low[table.touched], high[table.touched] = least, most
            name = names[kind].format(number)
            lines.append(_check(name, name, low, high))
    return lines


def _ends(bounds: Bounds) -> tuple[Float64Array, Float64Array]:
    """The least and the largest that is allowed; everything where an element is not judged."""
    low = np.where(bounds.undetermined, -np.inf, bounds.allowed.low)
    return low, np.where(bounds.undetermined, np.inf, bounds.allowed.high)


def _check(what: str, expression: str, low: Float64Array, high: Float64Array) -> str:
    same = np.array_equal(low, high, equal_nan=True)
    if same:
        return f'check("{what}", {expression}, *[{literal(low)}] * 2)'
    return f'check("{what}", {expression}, {literal(low)}, {literal(high)})'


def _nested(array: AnyArray) -> str:
    if array.ndim == 1:
        return "[" + ", ".join(_number(value) for value in array) + "]"
    return "[" + ", ".join(_nested(row) for row in array) + "]"


def _number(value: Any) -> str:
    if isinstance(value, np.integer):
        return str(int(value))
    return repr(float(value))


def _template() -> jinja2.Template:
    source = files("equivcheck").joinpath("templates", "script.py.j2").read_text()
    environment = jinja2.Environment(keep_trailing_newline=True, undefined=jinja2.StrictUndefined, autoescape=False)
    return environment.from_string(source)
