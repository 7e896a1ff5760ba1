"""What every test shares: the folder of real cases, and the rule that CI skips nothing.

``pytest tests kernels/tests --cases DIR`` gives the folder of real media and broken tars (written
``--cases=DIR`` where no test folder is named: pytest would take DIR for one); without it the tests
that want the fixture `cases` skip. Where the variable ``CI`` is set, any skip is a failure: a
missing library or folder must not pass for a green run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.ray_nodes import Nodes, connected


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases", metavar="DIR", default=None, help="folder of real media and broken tars"
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a script:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # children would ignore it, too
    folder = config.getoption("--cases")
    if folder is not None and not (Path(folder) / "inputs").is_dir():
        raise pytest.UsageError(f"--cases {folder}: no such folder of cases (it holds inputs/)")


@pytest.fixture(scope="session")
def cases(request: pytest.FixtureRequest) -> Path:
    """The folder given by ``--cases``; skips without it."""
    folder = request.config.getoption("--cases")
    if folder is None:
        pytest.skip("needs --cases DIR")
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Nodes]:
    """Ray, started once: it takes seconds."""
    with connected() as nodes:
        yield nodes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI skips nothing: {report.longrepr[2]}"  # type: ignore[index]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI skips nothing: {report.longrepr[2]}"  # type: ignore[index]
    return report
