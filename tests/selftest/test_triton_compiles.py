"""Every kernel of the built-in Triton TBE compiles, without a GPU: the interpreter accepts what the compiler refuses.

Triton interprets or compiles, never both in one process: compiling has a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("triton_compiling.py")
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
KERNELS = {
    "_check_indices",
    "_count_runs",
    "_encode_runs",
    "_gather",
    "_linearise",
    "_multiply",
    "_sum_chunks",
    "_update_long",
    "_update_whole",
    "_weight_gradient",
}


def compiled(target: str, which: str, cache: Path) -> list[dict[str, object]]:
    """What the script says about each kernel."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(SCRIPT.parents[2])}
    done = subprocess.run(
        [sys.executable, SCRIPT, target, which], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("target", TARGETS)
def test_a_representative_of_every_kernel_compiles(target: str, tmp_path: Path) -> None:
    """Also: PTX holds no approximate quotient or root, no flushing, no fused product and sum."""
    found = compiled(target, "representative", tmp_path)
    assert {kernel["kernel"] for kernel in found} == KERNELS
    assert [kernel for kernel in found if kernel["wrong"]] == []


@pytest.mark.soak
@pytest.mark.parametrize("target", TARGETS)
def test_every_variant_of_every_kernel_compiles(target: str, tmp_path: Path) -> None:
    """Some 1,500 kernels a target: about half an hour on one core."""
    found = compiled(target, "all", tmp_path)
    assert len(found) > 1_000
    assert [kernel for kernel in found if kernel["wrong"]] == []
