"""The direction of imports, as docs/architecture.md has it, and what importing the plugin costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "equivcheck"
BELOW_BACKENDS = {"case", "arithmetic", "problem", "outcome", "one_pass", "formats", "words"}
TORCH_ALLOWED = ("backends", "triton_tbe", "faults", "bench")


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_backends_and_kernels_import_torch_and_triton(path: Path) -> None:
    if path.relative_to(PACKAGE).parts[0] in TORCH_ALLOWED:
        return
    assert {_top(name) for name in _imports(path)} & {"torch", "triton", "fbgemm_gpu", "torchrec"} == set()


@pytest.mark.parametrize("folder", ["backends", "triton_tbe"])
def test_a_backend_never_sees_the_truth(folder: str) -> None:
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        ours = {name.split(".")[1] for name in _imports(path) if name.startswith("equivcheck.")}
        assert ours - BELOW_BACKENDS - {"backends", "triton_tbe"} == set(), path.name


def test_the_oracle_needs_numpy_and_scipy_alone() -> None:
    for path in sorted((PACKAGE / "oracle").rglob("*.py")):
        foreign = {_top(name) for name in _imports(path)} - set(sys.stdlib_module_names)
        assert foreign <= {"numpy", "scipy", "equivcheck"}, path.name
        ours = {name.split(".")[1] for name in _imports(path) if name.startswith("equivcheck.")}
        assert ours <= {"case", "arithmetic", "problem", "formats", "oracle"}, path.name


def test_importing_the_plugin_is_light() -> None:
    code = (
        "import sys, equivcheck.pytest_plugin; "
        "print([m for m in ('torch', 'triton', 'hypothesis', 'scipy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
