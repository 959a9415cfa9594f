"""The pytest plugin: the hooks, each a few lines. What they do is in `equivcheck.engine`.

Light to import: none of torch, triton, hypothesis, nor NumPy, since it is loaded into every pytest run of its
environment. A run without properties only has its options taken.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from equivcheck.engine.lifeline import hold_on
from equivcheck.engine.machine import describe
from equivcheck.engine.options import Options, add_options, encode, keep_terminal, options_of
from equivcheck.engine.placement import automatic

if TYPE_CHECKING:
    from equivcheck.engine.controller import Controller
    from equivcheck.engine.replays import RecordedFinding

MOST_RESTARTS = 100
"""Workers of xdist that may end before it gives up; its own limit is four times their number, and one slice may end
several (`journal.MOST_DEATHS`). A limit there is, for collections that crash."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take equivcheck's options."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the options; in the process that people watch, register what reports to them."""
    try:
        options = options_of(config)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if not hasattr(config, "workerinput"):
        keep_terminal(config)
        if config.getoption("equivcheck_lifeline") is not None:
            hold_on(config.getoption("equivcheck_lifeline"))
        config.pluginmanager.register(Watching(config, options), "equivcheck-watching")
        if getattr(config.option, "maxworkerrestart", "") is None:
            config.option.maxworkerrestart = str(MOST_RESTARTS)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """With `-n auto` and GPUs, as many workers as their memory is enough for; other people's runs are left alone."""
    ours = config.getoption("subject") or config.getoption("equivcheck_events")
    return automatic(os.environ) if ours else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Cut properties into slices, and recorded findings into one test each."""
    if {"equivcheck_slice", "recorded_finding"} & set(metafunc.fixturenames):
        from equivcheck.engine.collection import generate

        generate(metafunc)


@pytest.fixture
def recorded_finding(request: pytest.FixtureRequest) -> RecordedFinding:
    """A recorded finding on one of its subjects: its minimal case must fail as it is recorded."""
    from equivcheck.engine.replays import RecordedFinding

    finding, subject = request.param
    return RecordedFinding(finding, subject, request.node)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Note how many slices there are, for the process that people watch; before xdist tells it to look."""
    if options_of(session.config).run_folder.is_dir():
        from equivcheck.engine.collection import note

        note(session)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach a slice's counts to its report, which carries them to the controller and into JUnit's XML."""
    fixtures = getattr(item, "fixturenames", ())
    if call.when != "call" or not {"equivcheck_slice", "recorded_finding"} & set(fixtures):
        return (yield)
    from equivcheck.engine.collection import attach, properties

    item.user_properties += properties(item)
    report = yield
    attach(item, report)
    return report


class Watching:
    """Hooks of the process that people watch: pytest itself, or the controller of xdist's workers."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._started: Controller | None = None

    @property
    def _controller(self) -> Controller:
        """Made when something happens that concerns equivcheck."""
        if self._started is None:
            from equivcheck.engine.controller import Controller

            self._started = Controller(self._config, self._options)
        return self._started

    def pytest_report_header(self) -> list[str]:
        """Versions, device, seed, profile, subjects."""
        return describe(self._options)

    def pytest_sessionstart(self) -> None:
        """Save what earlier runs left in their journals."""
        if self._config.getoption("equivcheck_events") or self._options.journals_folder.is_dir():
            self._controller.recover()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send the options to a worker of xdist."""
        node.workerinput["equivcheck"] = encode(self._options)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """The first worker has collected: tell what."""
        if self._options.run_folder.is_dir():
            self._controller.collected()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """The same without xdist."""
        if self._options.run_folder.is_dir():
            self._controller.collected()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Publish what a slice found."""
        if hasattr(report, "equivcheck"):
            self._controller.publish(report)
        if hasattr(report, "equivcheck_event"):
            self._controller.publish_event(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Turn the journal of a worker that ended into a saved case, and run the rest of its slice in another."""
        if self._options.run_folder.is_dir():
            self._controller.worker_ended(crashitem, report, sched)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A property that has shown nothing makes the run red."""
        if self._started is not None:
            self._started.finish(session)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table of properties and subjects."""
        if self._started is not None:
            self._started.summarise(terminalreporter)

    def pytest_unconfigure(self) -> None:
        """Remove the journals' folder."""
        if self._started is not None:
            self._started.close()
