"""The suite that is run against a subject: one file a property. In the wheel it is `equivcheck.suite`."""
