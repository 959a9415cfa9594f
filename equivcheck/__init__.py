"""equivcheck: numerical equivalence of table-batched embedding kernels."""

__version__ = "0.1.0"
