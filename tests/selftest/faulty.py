"""Wrong builds as subjects: `faulty.py:kernel+run-of-256-twice`, `faulty.py:dying+crashes`.

Not a test. It is how a build that is wrong, or that ends its process, comes to the gate.
"""

from __future__ import annotations

import os
import resource
import signal
import time
import zlib

import numpy as np
import torch

from equivcheck.arithmetic import Arithmetic
from equivcheck.backends import registry
from equivcheck.backends.protocol import Backend
from equivcheck.case import Case
from equivcheck.faults.catalogue import by_name, faulty
from equivcheck.outcome import Outcome, Support
from equivcheck.problem import Problem

ONE_IN = 32
"""Share of the cases that are deadly: so few that the gate has a whole run to lose."""
_LIMIT = 2**34


def kernel(argument: str = "", fault: str = "") -> Backend:
    """The built-in Triton TBE with the fault of that name; right without one."""
    del argument  # what stands behind a colon, and here nothing does
    return faulty(by_name(fault), "triton") if fault else registry.build("triton")


def dying(argument: str = "", way: str = "") -> Backend:
    """Plain PyTorch, which crashes, hangs or eats memory at every 32nd case; right without a way."""
    del argument
    return Dying(registry.build("torch"), way)


class Dying:
    """A right backend with deadly cases: always the same ones."""

    def __init__(self, right: Backend, way: str) -> None:
        self.right = right
        self.way = way
        self.name = f"dying+{way}"

    def supports(self, case: Case) -> Support:
        return self.right.supports(case)

    def arithmetic(self, case: Case) -> Arithmetic:
        return self.right.arithmetic(case)

    def versions(self) -> dict[str, str]:
        return self.right.versions()

    def run(self, problem: Problem) -> Outcome:
        if zlib.crc32(problem.case.to_json()) % ONE_IN == 0:
            match self.way:
                case "crashes":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "hangs":
                    while True:
                        time.sleep(1)
                case "eats" if torch.cuda.is_available():
                    torch.empty(_LIMIT**2 // 2**20, dtype=torch.uint8, device="cuda")
                case "eats":
                    before = resource.getrlimit(resource.RLIMIT_AS)
                    resource.setrlimit(resource.RLIMIT_AS, (_LIMIT, before[1]))
                    try:
                        np.ones(_LIMIT)
                    finally:
                        resource.setrlimit(resource.RLIMIT_AS, before)
        return self.right.run(problem)
