"""The truth in fp64, and a proven bound for every element."""

from equivcheck.oracle.expect import expect
from equivcheck.oracle.expectation import (
    Bounds,
    Expectation,
    ForwardExpectation,
    TableExpectation,
    UpdateExpectation,
)

__all__ = ["Bounds", "Expectation", "ForwardExpectation", "TableExpectation", "UpdateExpectation", "expect"]
