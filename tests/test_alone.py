"""Files of adapter tests, each in a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = "import tests.alone\ntests.alone.CLASH = True\npytest_plugins = ['tests.alone']\n"


@pytest.fixture(autouse=True)
def clashing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        test_adapter_good="def test_one(): pass\ndef test_two(): pass",
        test_adapter_aborts="import os\ndef test_it(): os.abort()",
        test_adapter_absent="import pytest\npytest.importorskip('no_such_library', reason='it is not installed')",
        test_other="def test_other(): pass",
    )


def test_each_file_is_one_test_and_what_aborts_stops_no_other(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("-rs")
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["ended with -6", "*Fatal Python error: Aborted*", "SKIPPED*it is not installed"])


def test_a_file_that_is_run_alone_shows_its_tests(pytester: pytest.Pytester) -> None:
    pytester.runpytest_subprocess("test_adapter_good.py").assert_outcomes(passed=2)
