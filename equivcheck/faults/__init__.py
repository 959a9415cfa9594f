"""Faults put into right kernels on purpose, to show that the suite sees them, and how soon.

- `fault`: what a fault is, the classes of real bugs, and which properties look for a class first;
- `source`: source edits of the built-in Triton TBE, applied to a copy under another package name;
- `around`: wrappers around any backend;
- `simulated`: a NumPy kernel for what Triton's interpreter cannot express;
- `catalogue`: all of them, by name;
- `hunt`: the first kill of one fault; `pool`: of many, in processes of their own; `matrix`: the result, for people and
  machines.
"""
