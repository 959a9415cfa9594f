"""The gate: one run that answers whether a build can go live, and the page that says so.

`run` starts pytest and keeps its events; `result` is what they come to, by `gather` and `judgement`; `merge` puts
shards together and `diff` compares. In the child process `plugin` orders the tests, and `cases` are those that run
before the suite.
"""
