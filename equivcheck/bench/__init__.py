"""How fast a TBE is, shape by shape, next to another: `equivcheck bench`.

`point` says what is measured, `sweep` and `shards` list points, `sibling` makes the small case by which each is judged
first. `inputs`, `clock` and `measure` use torch and run on the device; `traffic` counts the bytes that a kernel cannot
do without; `run` puts them together. `result` is what is written down, `compare` refuses to compare what is not
comparable, `table` and `picture` show it.
"""
