"""Subjects by name, file and entry point; and errors that say what to write instead."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from equivcheck.backends import registry
from equivcheck.backends.protocol import Backend, BackendUnavailable
from equivcheck.backends.registry import Subject, SubjectError, available, build, parse

SUBJECT_FILE = """
from equivcheck.arithmetic import Arithmetic
from equivcheck.outcome import SUPPORTED, Outcome

class Echo:
    def __init__(self, *arguments):
        self.name = "echo " + " ".join(arguments)
    def supports(self, case):
        return SUPPORTED
    def arithmetic(self, case):
        return Arithmetic()
    def run(self, problem):
        return Outcome(())
    def versions(self):
        return {}

class Half:
    name = "half"
    def supports(self, case):
        return SUPPORTED
"""


@pytest.fixture
def subject_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "my+kernel.py"
    path.write_text(SUBJECT_FILE)
    return path


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("torch", Subject("torch")),
        ("torch:cuda:1", Subject("torch", argument="cuda:1")),
        ("torch:cpu+inductor", Subject("torch", argument="cpu", variants=("inductor",))),
        ("torchrec-triton+hoist+small", Subject("torchrec-triton", variants=("hoist", "small"))),
        ("./k.py:MyTBE", Subject("./k.py", in_file="MyTBE")),
        ("/a/b+c.py:MyTBE+fast", Subject("/a/b+c.py", in_file="MyTBE", variants=("fast",))),
        ("k.py:MyTBE", Subject("k.py", in_file="MyTBE")),
    ],
)
def test_a_name_comes_apart(text: str, subject: Subject) -> None:
    assert parse(text) == subject


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no name"),
        (":cpu", "has no name"),
        ("torch:", "nothing behind its colon"),
        ("torch+", "empty variant"),
        ("./k.py", r"a file without a class; write \./k\.py:YourClass"),
        ("./k.py:", r"a file without a class; write \./k\.py:YourClass"),
    ],
)
def test_a_malformed_name_is_explained(text: str, message: str) -> None:
    with pytest.raises(SubjectError, match=message):
        parse(text)


def test_arguments_are_given_only_where_there_are_any() -> None:
    assert Subject("x").arguments == ()
    assert Subject("x", variants=("v",)).arguments == ("", "v")
    assert Subject("x", argument="a", variants=("v",)).arguments == ("a", "v")


def test_an_fbgemm_with_options_that_nobody_has_looked_at_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer one would run with defaults of its own: that is said once, not as the failure of every case."""
    fbgemm = pytest.importorskip("equivcheck.backends.fbgemm_module")
    known = fbgemm._parameters()
    monkeypatch.setattr(fbgemm, "_parameters", lambda: known | {"fast_rounding"})
    with pytest.raises(BackendUnavailable, match="does not set: fast_rounding; the adapter knows FBGEMM 1"):
        build("fbgemm-cpu")
    monkeypatch.setattr(fbgemm, "_parameters", lambda: known - {"stochastic_rounding"})
    with pytest.raises(BackendUnavailable, match="has no constructor options stochastic_rounding; "):
        build("fbgemm-cpu")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SubjectError, match=r"'tensorflow', which does not exist; there are .*torch, .*fbgemm-cpu"):
        build("tensorflow")


def test_a_file_needs_no_package(subject_file: Path) -> None:
    backend = build(f"{subject_file}:Echo+fast")
    assert isinstance(backend, Backend)
    assert backend.name == "echo  fast"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"absent\.py', which does not exist in"):
        build(f"{tmp_path}/absent.py:Echo")


def test_a_missing_class_lists_those_there_are(subject_file: Path) -> None:
    with pytest.raises(SubjectError, match=r"'Eco', which my\+kernel\.py does not have; it has Echo, Half"):
        build(f"{subject_file}:Eco")


def test_a_class_without_the_protocol_hears_what_it_lacks(subject_file: Path) -> None:
    with pytest.raises(SubjectError, match="is a Half without arithmetic, run, versions"):
        build(f"{subject_file}:Half")


def test_a_file_that_raises_is_quoted(subject_file: Path) -> None:
    subject_file.write_text("import a_package_that_is_not_there\n")
    with pytest.raises(SubjectError, match=r"my\+kernel\.py raised ModuleNotFoundError: No module named 'a_package"):
        build(f"{subject_file}:Echo")


def test_arguments_that_a_class_does_not_take_are_named() -> None:
    with pytest.raises(SubjectError, match="cannot be built with the argument 'cuda'"):
        build("fbgemm-cpu:cuda")
    with pytest.raises(SubjectError, match="the argument 'cpu' and the variants warp"):
        build("fbgemm-cpu:cpu+warp")
    with pytest.raises(SubjectError, match="variant 'warp' is unknown; torch has inductor"):
        build("torch:cpu+warp")


def test_a_device_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(BackendUnavailable, match="cannot use 'abacus'"):
        build("torch:abacus")


def test_entry_points_are_backends(monkeypatch: pytest.MonkeyPatch, subject_file: Path) -> None:
    monkeypatch.syspath_prepend(str(subject_file.parent))
    (subject_file.parent / "third_party.py").write_text(SUBJECT_FILE)
    points = [
        EntryPoint("echo", "third_party:Echo", registry.ENTRY_POINT_GROUP),
        EntryPoint("gone", "no_such_module:Echo", registry.ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert build("echo:loud").name == "echo loud"
    found = {entry.name: entry for entry in available()}
    assert list(found) == [*registry.BUILT_IN, *registry.CONFIGURED, "echo", "gone"]
    assert found["echo"].runs
    assert not found["gone"].runs
    assert "needs the Python package no_such_module" in found["gone"].reason


def test_every_backend_is_available_or_says_why_not() -> None:
    for entry in available():
        assert entry.runs != bool(entry.reason)
    assert {entry.name for entry in available() if entry.runs} >= {"torch", "fbgemm-cpu"}


def test_the_registry_imports_no_system() -> None:
    code = (
        "import sys; import equivcheck.backends.registry as r; r.parse('torch:cpu');"
        "print({'torch', 'triton', 'fbgemm_gpu'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"
