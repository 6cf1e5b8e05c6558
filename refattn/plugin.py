"""The pytest plugin: `pytest --attention module:callable --pyargs refattn.conformance`.

A project that wants the suite among its own tests writes `from refattn.conformance.test_attention
import test_attention` in a test module, and names its implementation in pytest's ini file, or overrides the
fixture `attention` in a conftest beside it.  `--attention-expected FILE` lists what is known to fail.

The plugin is loaded in every pytest run of its environment, so it imports nothing here but pytest,
and does nothing until a test asks for one of its fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from .calling import Local
    from .case import Case
    from .session import Examination, Session
    from .worker import Worker

__all__ = ["attention", "attention_candidate", "attention_conforms"]

_FINDINGS = pytest.StashKey[list[dict[str, Any]]]()
_TALLY = pytest.StashKey[list[tuple[str, int, int]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("refattn", "refattn: conformance of an implementation of attention")
    group.addoption(
        "--attention",
        metavar="MODULE:CALLABLE",
        help="the implementation that refattn.conformance examines (default: refattn's own)",
    )
    group.addoption(
        "--attention-timeout",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="how long one call of it may take (default: %(default)s)",
    )
    group.addoption("--attention-full", action="store_true", help="run the chapter huge too, which takes minutes")
    group.addoption(
        "--attention-expected",
        metavar="FILE",
        help="lines `ID-or-glob  # reason` of cases that are known to fail; one that passes is a failure",
    )
    parser.addini("attention", "module:callable, what --attention is when it is not given", default="")
    parser.addini("attention_expected", "the file of --attention-expected, seen from the ini file", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "attention(chapter, dtype, backward): a case of refattn's suite; -m \"attention(chapter='masks')\" selects",
    )
    config.stash[_FINDINGS], config.stash[_TALLY] = [], []


@pytest.fixture(scope="session")
def attention(pytestconfig: pytest.Config) -> Any:
    """The implementation under test: a spec "module:callable", which runs in a process of its own.

    A conftest may override this fixture, also with an `Implementation` itself, which then runs in
    pytest's process.
    """
    from .implementation import DEFAULT

    return pytestconfig.getoption("attention") or pytestconfig.getini("attention") or DEFAULT


@pytest.fixture(scope="session")
def _attention_session(pytestconfig: pytest.Config) -> Iterator[Session]:
    """All that is examined; in the end what was found of it goes to the process that prints."""
    from .session import Session

    session = Session(pytestconfig.getoption("attention_timeout"), _expected(pytestconfig))
    try:
        yield session
        found, tally = session.findings(), session.tally()
    finally:
        session.close()
    if hasattr(pytestconfig, "workeroutput"):  # of xdist
        pytestconfig.workeroutput["refattn"] = found, tally
    else:
        pytestconfig.stash[_FINDINGS] += found
        pytestconfig.stash[_TALLY] += tally


def _expected(config: pytest.Config) -> Path | None:
    if config.getoption("attention_expected"):
        return Path(config.invocation_params.dir, config.getoption("attention_expected"))
    named = config.getini("attention_expected")
    return Path(config.rootpath if config.inipath is None else config.inipath.parent, named) if named else None


@pytest.fixture
def _attention_examination(attention: Any, _attention_session: Session, pytestconfig: pytest.Config) -> Examination:
    from .said import plain
    from .worker import CannotLoad

    try:
        return _attention_session.of(attention)
    except (CannotLoad, ValueError, OSError) as error:
        _refuse(pytestconfig, plain(str(error)))


def _refuse(config: pytest.Config, text: str) -> NoReturn:
    if hasattr(config, "workerinput"):  # of xdist, which takes an exit for a crash
        pytest.fail(text, pytrace=False)
    pytest.exit(text, returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.fixture
def attention_candidate(_attention_examination: Examination) -> Worker | Local:
    """The implementation, loaded: once in a session."""
    return _attention_examination.candidate


@pytest.fixture
def attention_conforms(
    _attention_examination: Examination, pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> Callable[[Case], None]:
    """A function that examines a case: returns if it passes or is acceptable, else fails or skips the test."""

    def check(case: Case) -> None:
        from .cases import FULL
        from .examine import BadContract
        from .report import failure
        from .said import plain

        if case.chapter in FULL and not pytestconfig.getoption("attention_full"):
            pytest.skip(f"chapter {case.chapter} is left out; --attention-full runs it")
        examination = _attention_examination
        try:
            verdict = examination.examine(case)
        except BadContract as error:
            pytest.fail(plain(str(error)), pytrace=False)
        record_property("status", verdict.status)
        for name, values in (("conventions", verdict.conventions), ("loosened", verdict.loosened)):
            if values:
                record_property(name, ", ".join(f"{field}={value!r}" for field, value in values.items()))
        reason = examination.expected.get(case.id)
        if verdict.status == "unsupported":
            pytest.skip(" ".join(verdict.reasons))
        if verdict.status == "failed" and reason is not None:
            pytest.xfail(reason)
        if verdict.status == "failed":
            pytest.fail(failure(verdict, examination.spec), pytrace=False)
        if reason is not None and examination.strict:
            pytest.fail(f"{case.id} passes, but is listed as an expected failure: {reason}", pytrace=False)

    return check


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A process of xdist has ended: what it found."""
    found, tally = getattr(node, "workeroutput", {}).get("refattn", ([], []))
    node.config.stash[_FINDINGS] += found
    node.config.stash[_TALLY] += tally


def _not_judged(config: pytest.Config) -> list[str]:
    tally = config.stash[_TALLY]
    if not tally:
        return []
    from .session import not_judged

    return not_judged(tally)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run in which implementations refused all that they were asked is no success."""
    config = session.config
    judged = any(n for _, n, _ in config.stash[_TALLY])
    if session.exitstatus == pytest.ExitCode.OK and not judged and _not_judged(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Of implementations that failed: which bug explains it, and what was found of their conventions."""
    for name in _not_judged(config):
        terminalreporter.write_line(f"refattn: no success: no case was judged of {name}")
    findings = config.stash[_FINDINGS]
    if not findings:
        return
    from .session import merged, summary

    terminalreporter.section("attention")
    for found in merged(findings):
        for line in summary(found):
            terminalreporter.write_line(line)
