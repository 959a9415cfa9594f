"""`python -m equivcheck` is the command `equivcheck`."""

from equivcheck.cli import main

main()
