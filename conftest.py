# An installed equivcheck is found by its pytest11 entry point, which has this same name: pytest registers it once.
pytest_plugins = ["equivcheck.pytest_plugin"]
