"""The verbs of the command line, one module each; see `equivcheck.cli.application` for what a module offers."""
