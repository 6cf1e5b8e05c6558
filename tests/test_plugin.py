"""The pytest plugin, run on pytest runs of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import candidates
import pytest
from few_hypotheses import few_hypotheses  # noqa: F401

from refattn.cases import CASES
from refattn.session import merged, summary

pytest_plugins = ["pytester"]

SUITE = ("--pyargs", "refattn.conformance")
FEW = ("-k", "full-tiny-f32 or causal-tiny-f32 or softcap-1-f32")


@pytest.fixture(autouse=True)
def as_a_user(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with my_kernel.py, where the plugin is loaded as its entry point would load it."""
    candidates.install(pytester.path)
    root = str(Path(__file__).parent.parent)
    monkeypatch.setenv("PYTHONPATH", root)
    monkeypatch.syspath_prepend(root)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p refattn.plugin -p no:cacheprovider")


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*arguments)


def test_one_item_for_each_case(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--collect-only", "-q", *SUITE)
    ids = [line.split("[")[1].rstrip("]") for line in result.outlines if "test_attention[" in line]
    assert ids == [case.id for case in CASES]


def test_the_huge_chapter_is_left_out_until_asked_for(pytester: pytest.Pytester) -> None:
    result = run(pytester, *SUITE, "-k", "far-heads-f16", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*--attention-full runs it"])
    run(pytester, *SUITE, "-k", "far-heads-f16", "--attention-full").assert_outcomes(passed=1)


def test_default_is_our_own_kernel(pytester: pytest.Pytester) -> None:
    run(pytester, *SUITE, *FEW).assert_outcomes(passed=3)


def test_command_line(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--attention", "my_kernel:plain", *SUITE, *FEW, "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*takes no softcap"])
    assert "no success" not in result.stdout.str()


def test_failure_text_is_the_reports(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--attention", "my_kernel:ignores_masks", *SUITE, "-k", "causal-tiny-f32")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "FAIL causal-tiny-f32  out[[]*] = *, should be * in [[]*]   ratio * (limit 1; rigorous *), * of 64 *",
            "     replay: refattn check my_kernel:ignores_masks --case causal-tiny-f32",
        ]
    )
    assert "Traceback" not in result.stdout.str() and "plugin.py" not in result.stdout.str()


def test_ini_key(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nattention = my_kernel:ignores_masks\n")
    run(pytester, *SUITE, *FEW).assert_outcomes(passed=2, failed=1)
    run(pytester, "--attention", "my_kernel:honest", *SUITE, *FEW).assert_outcomes(passed=3)


def test_deadline(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(slow="import time\ndef attention(q, k, v, *, mask=None):\n    time.sleep(60)\n")
    result = run(pytester, "--attention", "slow:attention", "--attention-timeout", "0.5", *SUITE, "-k", "full-tiny-f32")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAIL full-tiny-f32  timed out: no answer within 0.5 s", "*slow.py*"])


@pytest.mark.parametrize(
    ("fixture", "outcome"),
    [
        ("return 'my_kernel:ignores_masks'", {"passed": 1, "failed": 1}),
        ("import my_kernel; return my_kernel.honest", {"passed": 2}),
        ("import my_kernel; return my_kernel.plain", {"passed": 2}),
        ("import my_kernel; return my_kernel.ignores_masks", {"passed": 1, "failed": 1}),
    ],
    ids=["spec", "implementation", "function", "bad implementation"],
)
def test_conftest_may_override_the_fixture(
    pytester: pytest.Pytester, fixture: str, outcome: dict[str, int]
) -> None:
    pytester.makeconftest(
        f"import pytest\n@pytest.fixture(scope='session')\ndef attention():\n    {fixture}\n"
    )
    pytester.makepyfile(test_mine="from refattn.conformance.test_attention import test_attention\n")
    result = run(pytester, "-k", "full-tiny-f32 or causal-tiny-f32")
    result.assert_outcomes(**outcome)
    assert ("replay: " in result.stdout.str()) == ("'my_kernel" in fixture and "failed" in outcome)
    sys.modules.pop("my_kernel", None)


def test_candidate_that_cannot_be_loaded_ends_the_run(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--attention", "my_kernel:absent", *SUITE, *FEW)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["*cannot load 'my_kernel:absent': *my_kernel has no absent*"])


def test_bad_contract_fails_with_one_line(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--attention", "my_kernel:sourceless", *SUITE, "-k", "full-tiny-f32")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["sourceless: precision(full-tiny-f32) is looser than *"])


def test_what_was_acceptable_is_recorded(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, "--attention", "my_kernel:nan_rows", *SUITE, "-k", "causal-br-tall-f32", "--junit-xml", "r.xml"
    )
    result.assert_outcomes(passed=1)
    xml = (pytester.path / "r.xml").read_text()
    assert 'name="status" value="acceptable"' in xml and "empty_rows='nan'" in xml


def test_the_summary_of_a_failing_run_names_the_bug_and_the_conventions(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--attention", "my_kernel:ignores_masks", *SUITE, "-k", "causal-tiny or causal-br-1x2")
    result.stdout.fnmatch_lines(
        [
            "*= attention =*",
            "my_kernel:ignores_masks (causal always): 1 failed, 1 passed",
            "found: *",
            "*empty rows*",
            "diagnosis: *",
        ]
    )
    assert "diagnosis" not in run(pytester, "--attention", "my_kernel:honest", *SUITE, *FEW).stdout.str()


def test_two_implementations_in_one_session(pytester: pytest.Pytester) -> None:
    """A conftest of a folder has its own; the ini file's is not mistaken for it."""
    pytester.makeini("[pytest]\nattention = my_kernel:ignores_masks\n")
    for folder, fixture in (("one", ""), ("two", "return 'my_kernel:honest'")):
        (pytester.path / folder).mkdir()
        text = "from refattn.conformance.test_attention import test_attention\n"
        (pytester.path / folder / f"test_{folder}.py").write_text(text)
        if fixture:
            text = f"import pytest\n@pytest.fixture(scope='session')\ndef attention():\n    {fixture}\n"
            (pytester.path / folder / "conftest.py").write_text(text)
    result = run(pytester, *FEW, "-v")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["one*causal-tiny-f32* FAILED*", "two*causal-tiny-f32* PASSED*"])


def test_expected_failures(pytester: pytest.Pytester) -> None:
    (pytester.path / "lists").mkdir()
    (pytester.path / "lists" / "known.txt").write_text("causal-*-f32  # it knows no masks (issue 7)\n")
    listed = ("--attention-expected", "lists/known.txt", "--attention", "my_kernel:ignores_masks")
    result = run(pytester, *listed, *SUITE, *FEW, "-rx")
    result.assert_outcomes(passed=2, xfailed=1)
    result.stdout.fnmatch_lines(["XFAIL*causal-tiny-f32* - it knows no masks (issue 7)"])
    assert "diagnosis" not in result.stdout.str()
    result = run(pytester, *listed, "--attention", "my_kernel:honest", *SUITE, *FEW)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["causal-tiny-f32 passes, but is listed as an expected failure: it knows no masks*"])
    pytester.makeini("[pytest]\nattention = my_kernel:ignores_masks\nattention_expected = lists/known.txt\n")
    run(pytester, *SUITE, *FEW).assert_outcomes(passed=2, xfailed=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [("casual-*\n", "*known.txt:1: 'casual-[*]' matches no case*"), (None, "*known.txt*")],
    ids=["no case", "no file"],
)
def test_a_list_that_cannot_be_read_ends_the_run(pytester: pytest.Pytester, text: str | None, message: str) -> None:
    if text is not None:
        (pytester.path / "known.txt").write_text(text)
    result = run(pytester, "--attention-expected", "known.txt", *SUITE, *FEW)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines([message])


def test_marks_select(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--collect-only", "-q", *SUITE, "-m", "attention(chapter='gradients', dtype='float64')")
    ids = [line.split("[")[1].rstrip("]") for line in result.outlines if "test_attention[" in line]
    assert ids == [case.id for case in CASES if (case.chapter, case.dtype) == ("gradients", "float64")]


def test_with_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    arguments = ("-n", "2", "--attention", "my_kernel:ignores_masks", *SUITE, *FEW)
    result = pytester.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*= attention =*", "my_kernel:ignores_masks (*", "found: *", "diagnosis: *"])
    assert result.stdout.str().count("found: ") == 1


def test_what_several_processes_found_is_made_one() -> None:
    def part(failing: int, first: str, cases: int, exact: bool = False, **notes: int) -> dict[str, Any]:
        one = {"name": "a:b", "about": "b 1", "counts": {"failed": failing, "passed": 3}, "found": ["lse base: e"]}
        found = {"lines": ["its own"], "failing": failing, "first": first, "cases": cases, "exact": exact}
        return {**one, "mismatches": [], "diagnoses": [{**found, "notes": notes}]}

    def told(*parts: dict[str, Any]) -> list[str]:
        (found,) = merged(parts)
        return summary(found)[2:]

    assert summary(merged([part(2, "", 0), part(1, "", 0)])[0]) == [
        "a:b (b 1): 3 failed, 6 passed", "found: lse base: e", "diagnosis: no bug of the catalogue explains it",
    ]  # fmt: skip
    assert told(part(2, "x (one)", 2)) == ["diagnosis: its own"]
    assert told(part(2, "x (one)", 2, True), part(3, "x (one)", 3, True)) == [
        "diagnosis: your output is attention with this bug: x (one)", "           it explains all failing cases",
    ]  # fmt: skip
    assert told(part(2, "x (one)", 2, True), part(4, "y (two)", 3), part(1, "x (one)", 1, another=1)) == [
        "diagnosis: 3 of 7 failing cases look like this bug: y (two)",
        "           3 of 7 failing cases look like this bug: x (one)", "           1 of 7 failing cases: another",
    ]  # fmt: skip


def test_a_candidate_that_cannot_be_loaded_under_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = pytester.runpytest_subprocess("-n", "1", "--attention", "my_kernel:absent", *SUITE, *FEW)
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["*my_kernel has no absent*"])


def test_other_runs_are_not_disturbed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        import pytest

        @pytest.fixture
        def attention():
            return "mine"

        def test_own_fixture_of_that_name(attention):
            assert attention == "mine"

        def test_nothing_was_imported():
            assert "refattn.plugin" in sys.modules
            assert not {"refattn.worker", "refattn.cases", "rich", "hypothesis", "torch", "numba"} & set(sys.modules)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "-W", "error", "--strict-markers")
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("reason, code, said", [
    ("I do nothing", 1, True), ("needs a GPU", 0, False),
])  # fmt: skip
@pytest.mark.parametrize("processes", [0, 1])
def test_refusing_all_is_no_success(
    pytester: pytest.Pytester, reason: str, code: int, said: bool, processes: int
) -> None:
    if processes:
        pytest.importorskip("xdist")
    pytester.makepyfile(
        refuses="from refattn.precision import Unsupported\n"
        f"def attention(q, k, v):\n    raise Unsupported({reason!r})\n"
    )
    workers = ("-n", str(processes)) if processes else ()
    result = pytester.runpytest_subprocess("--attention", "refuses:attention", *SUITE, "-k", "tiny-f32", *workers)
    assert result.ret == code and result.parseoutcomes().keys() <= {"skipped", "deselected", "warnings"}
    assert ("no success: no case was judged of refuses:attention" in result.stdout.str()) == said


def test_a_lone_surrogate_does_not_lose_the_processes(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(says="def attention(q, k, v):\n    raise ValueError('half \\ud800')\n")
    result = pytester.runpytest_subprocess("--attention", "says:attention", *SUITE, "-k", "full-tiny-f32", "-n", "1")
    result.assert_outcomes(failed=1)
    assert r"half \ud800" in result.stdout.str() and "INTERNALERROR" not in result.stdout.str()
