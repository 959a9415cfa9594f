"""Faults that only a GPU shows: what they edit compiles without one, and holds the instructions that they stand for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from equivcheck.faults.catalogue import FAULTS
from equivcheck.faults.fault import Reach

SCRIPT = Path(__file__).with_name("faults_compiling.py")
INSTRUCTIONS = {
    "approximate-root": "sqrt.approx",
    "approximate-quotient": "div.full",
    "differences-flushed": "sub.ftz",
    "fused-multiply-adds": "fma.rn.f32",
    "pairs-in-fp16": "add.rn.f16",
    "chunks-by-atomics": "atom.global",
    "whole-rows-in-tf32": "tf32",
    "pieces-of-12-bits": "tf32",
}
"""PTX of the fault's kernels."""
NAMELESS = {"chunks-not-awaited", "wide-lanes-of-uneven-tables", "nan-rounds-up-to-zero"}
"""Change how kernels are launched, or leave instructions out."""


def compiled(names: list[str], cache: Path) -> list[dict[str, Any]]:
    """What the script says about each kernel."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, str(SCRIPT), "sm_90", *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_instructions_are_named_for_every_fault_that_only_a_gpu_shows() -> None:
    hidden = {fault.name for fault in FAULTS.values() if fault.reach is Reach.GPU}
    assert hidden | {"fused-multiply-adds"} == {*INSTRUCTIONS, *NAMELESS}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "whole-rows-in-tf32" else pytest.mark.soak) for name in INSTRUCTIONS],
)
def test_what_a_fault_edits_compiles_and_holds_its_instruction(name: str, tmp_path: Path) -> None:
    found = compiled([name], tmp_path)
    assert [kernel for kernel in found if kernel["wrong"]] == []
    assert any(INSTRUCTIONS[name] in kernel["inexact"] for kernel in found), found
