"""The pytest plugin: `pytest --attention module:callable --pyargs refattn.conformance`.

A project that wants the suite among its own tests writes `from refattn.conformance.test_attention
import test_attention` in a test module and overrides the fixture `attention` in a conftest beside it.

The plugin is loaded in every pytest run of its environment, so it imports nothing here but pytest,
and does nothing until a test asks for one of its fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .calling import Local
    from .case import Case
    from .worker import Worker

__all__ = ["attention", "attention_candidate", "attention_conforms"]


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
    parser.addini("attention", "module:callable, what --attention is when it is not given", default="")


@pytest.fixture(scope="session")
def attention(pytestconfig: pytest.Config) -> Any:
    """The implementation under test: a spec "module:callable", which runs in a process of its own.

    A conftest may override this fixture, also with an `Implementation` itself, which then runs in
    pytest's process.
    """
    from .implementation import DEFAULT

    return pytestconfig.getoption("attention") or pytestconfig.getini("attention") or DEFAULT


@pytest.fixture(scope="session")
def attention_candidate(attention: Any, pytestconfig: pytest.Config) -> Iterator[Worker | Local]:
    """The implementation, loaded."""
    from .calling import Local
    from .implementation import wrap
    from .worker import CannotLoad, Worker

    if not isinstance(attention, str):
        yield Local(wrap(attention, getattr(attention, "__qualname__", type(attention).__name__)))
        return
    try:
        worker = Worker(attention, pytestconfig.getoption("attention_timeout"))
    except CannotLoad as error:
        if hasattr(pytestconfig, "workerinput"):  # of xdist, which takes an exit for a crash
            pytest.fail(str(error), pytrace=False)
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
    with worker:
        yield worker


@pytest.fixture
def attention_conforms(
    attention: Any,
    attention_candidate: Worker | Local,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> Callable[[Case], None]:
    """A function that examines a case: returns if it passes or is acceptable, else fails or skips the test."""

    def check(case: Case) -> None:
        from .cases import FULL
        from .conform import BadContract, examine
        from .report import failure

        if case.chapter in FULL and not pytestconfig.getoption("attention_full"):
            pytest.skip(f"chapter {case.chapter} is left out; --attention-full runs it")
        spec = attention if isinstance(attention, str) else None
        try:
            verdict = examine(attention_candidate, case)
        except BadContract as error:
            pytest.fail(str(error), pytrace=False)
        record_property("status", verdict.status)
        for name, values in (("conventions", verdict.conventions), ("loosened", verdict.loosened)):
            if values:
                record_property(name, ", ".join(f"{field}={value!r}" for field, value in values.items()))
        if verdict.status == "unsupported":
            pytest.skip(" ".join(verdict.reasons))
        if verdict.status == "failed":
            pytest.fail(failure(verdict, spec), pytrace=False)

    return check
