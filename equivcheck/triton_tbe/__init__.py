"""The built-in Triton TBE: a complete table-batched embedding, meant to be read in an evening.

Read in this order: `layout` (where tables, states, bags and outputs lie), `forward`, `small_tables`, `transpose`
(lookups sorted into runs), `backward`, `optimizers`, `rounding`, `weight_gradient`, `bounds`, `tiles`, and `module`,
which puts them together.

The same kernels run compiled on a GPU and in Triton's interpreter on the CPU. Triton decides between the two once, when
it is imported: `mode` makes that decision before any other file here imports it.
"""

from .mode import Mode, settle

__all__ = ["MODE", "Mode"]

MODE: Mode = settle()
"""How the kernels of this process run."""
