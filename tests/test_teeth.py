"""The teeth: rows of the matrix, false alarms, power, runs that resume, and pages; each check fails once."""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from refattn.mutants import MUTANTS, TILES, Kernel
from refattn.public_rules import RULES
from refattn.streaming import Rules
from refattn.teeth import command, honest, matrix, power, results, runs
from refattn.teeth.answers import ask, by_id, reference
from refattn.teeth.pages import as_html, as_markdown

DOCS = Path(__file__).parent.parent / "docs"
HEADER = {"refattn": "1", "date": "today"}


LONG = ("jax-", "fa-97-", "fa-causal-", "sdpa-f16", "sdpa-causal-bf16", "sdpa-gqa-")
"""inputs of others that take seconds, and none of which kills causal_top_left: docs/teeth.json"""


@pytest.fixture(scope="module")
def row():
    some = {name: replace(rule, inputs=[c for c in rule.inputs if not c.id.startswith(LONG)] or rule.inputs[1:2])
            for name, rule in RULES.items()}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix, "RULES", some)
        return matrix.full_row("causal_top_left")


def parsed(*options):
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["teeth", *map(str, options)])


def of_row(row, honest_rows=()):
    return {"header": HEADER, "mutants": [row], "honest": list(honest_rows), "power": []}


# rows


def test_a_full_row(row):
    assert row["by"] == MUTANTS["causal_top_left"].caught and row["ratio"] > 1 and not row["suspicious"]
    vector = int(row["vector"], 16)
    its = [id for n, id in enumerate(matrix.killers()) if vector >> n & 1]
    assert row["by"] in its and all("causal" in repr(by_id(id).mask).lower() or by_id(id).mask for id in its)
    assert row["own"]["twice_eager"].startswith("fa-gqa-causal") and not row["own"]["fudge"], "torch's is square"
    assert all(row["ours"].values())
    assert row["reach"]["twice_eager"] and row["reach"]["cosine"] and not row["reach"]["fudge"]
    assert json.loads(json.dumps(row)) == row


def test_a_law_kills_what_no_single_problem_shows():
    row = matrix.quick_row("returns_first_answer")
    assert "." in row["by"] and not any(row["ours"].values())


def test_a_mutant_that_lives_is_a_fault(row):
    assert results.faults(of_row(row)) == []
    assert "lives" in results.faults(of_row({**row, "by": ""}))[0]
    survivor = {**row, "name": "reads_reference", "by": ""}
    assert results.faults(of_row(survivor)) == [] and results.groups([survivor]) == []


def test_the_statistics_are_asked_where_nothing_kills(monkeypatch):
    lives = replace(MUTANTS["log2e_in_fp16"], caught="")
    monkeypatch.setitem(MUTANTS, lives.name, lives)
    monkeypatch.setattr(matrix, "STANDARD", ("bfloat16",))
    row = matrix.quick_row(lives.name)
    assert not row["by"] and row["suspicious"].startswith("bfloat16: out is")


def test_a_rule_that_rejects_the_honest_kernel_kills_nothing():
    case = next(case for case in RULES["assert_close"].inputs if case.id == "plain-f16")
    its, rule = reference(case), RULES["assert_close"]
    answer = ask(MUTANTS["mean_of_v"].implementation, case)
    assert not its.accepted(rule, its.dense(answer)) and its.alarms(rule) and not its.kills(rule, answer)
    assert its.kills(RULES["twice_eager"], answer)


def test_what_is_no_case_is_refused():
    with pytest.raises(ValueError, match=r"id='nothing' is no case"):
        by_id("nothing")


def test_equal_kill_vectors_count_once(row):
    other = {**row, "name": "another"}
    apart = {**row, "name": "apart", "own": {**row["own"], "nmse": "somewhere"}}
    assert len(results.groups([row, other])) == 1 and len(results.groups([row, other, apart])) == 2
    assert results.tally([row, other, apart], "own", "nmse") == (1, 2)
    by_law = [{**row, "name": name, "vector": "0"} for name in ("one", "two")]
    assert len(results.groups(by_law)) == 2, "what a law alone kills is not compared"
    assert results.tally([{**row, "own": None}], "own", "nmse") is None


# honest kernels


def test_honest_kernels_pass_with_us_and_not_with_all():
    row = honest.honest_row("plain-f16")
    assert set(row["kernels"]) == set(honest.KERNELS) and row["owner"] == "assert_close"
    assert results.alarms([row], "", False) == (0, 6) and results.alarms([row], "assert_close", True)[0] > 0
    assert results.alarms([row], "nmse", False) == (0, 0), "that is no input of it"
    assert all(0 < one["ratio"] <= 1 for one in row["kernels"].values())


def test_a_false_alarm_is_a_fault(monkeypatch, row):
    monkeypatch.setattr(honest, "kernel_of", lambda name, case: MUTANTS["scale_off_by_a_thousandth"].implementation)
    wrong = honest.honest_row("full-f32")
    assert any("false alarm" in fault for fault in results.faults(of_row(row, [wrong])))


def test_what_does_not_fit_16_bits_is_not_asked():
    names = [id for id in matrix.killers() if honest.kernel_of("eager", by_id(id)) is None]
    assert any(by_id(id).dtype == "float32" for id in names)


# power


def test_power_in_bfloat16():
    nothing = power.notices(Rules, "bfloat16")
    assert nothing == {**dict.fromkeys(power.COLUMNS, False), "assert_close": power.ALWAYS}
    much = power.notices(power.plants()["scale off by 1 %"], "bfloat16")
    assert much["ours"] is much["statistics"] is True and much["nmse"] is False
    found = power.smallest("bfloat16", (0.25, 2.0**-7, 2.0**-12))
    assert found["cosine"] == 0.25 and found["statistics"] == 2.0**-12 and found["assert_close"] is None
    assert found["statistics"] < found["ours"] < found["cosine"]


def test_the_standard_problem_is_one_for_the_statistics():
    its = reference(power.standard("bfloat16"))
    assert its.ratio(ask(Kernel(schedule=TILES), its.case)) <= 1


# runs


def test_a_run_resumes(tmp_path):
    out = tmp_path / "rows.jsonl"
    tasks = ["quick:causal_top_left", "quick:mean_of_v"]
    first = runs.run(tasks, jobs=2, out=out, header=HEADER)
    assert [row["task"] for row in first] == tasks
    whole = out.read_bytes()
    out.write_bytes(whole[:-20])  # killed while it wrote the last line
    seen = []
    again = runs.run(tasks, out=out, header={**HEADER, "date": "tomorrow"}, on_row=seen.append)
    assert [{**row, "seconds": 0} for row in again] == [{**row, "seconds": 0} for row in first] and len(seen) == 2
    assert len(out.read_bytes().splitlines()) == 3
    out.write_bytes(whole[: whole.index(b"\n") - 3])  # killed before it was begun
    assert runs.read(out, HEADER) == [] and not out.exists()


def test_workers_of_a_killed_run_end(tmp_path):
    out = tmp_path / "rows.jsonl"
    script = tmp_path / "script.py"  # a file: what is spawned imports it again
    script.write_text(
        "import pathlib, sys\nfrom refattn.teeth.runs import run\n"
        "if __name__ == '__main__':\n"
        "    tasks = ['quick:mean_of_v', *(f'mutant:{n}' for n in sys.argv[2:])]\n"
        "    run(tasks, out=pathlib.Path(sys.argv[1]), header={})\n"
    )
    paths = os.pathsep.join([str(DOCS.parent), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        [sys.executable, script, out, *MUTANTS], env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE
    )
    wait_for(lambda: out.exists() and len(out.read_bytes().splitlines()) > 1)
    parent.kill()
    # the worker has the pipe of stderr too: it is at its end when the worker is
    end = threading.Thread(target=parent.communicate, daemon=True)
    end.start()
    end.join(20)
    assert not end.is_alive()
    assert runs.read(out, {})[0]["task"] == "quick:mean_of_v", "and what it had made is there"


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("text", ["{}\n", "no json\n", '{"refattn": "1", "date": "x"}\n{"name": "no task"}\n', "[]\n"])
def test_other_files_are_refused(tmp_path, text):
    out = tmp_path / "rows.jsonl"
    out.write_text(text)
    with pytest.raises(ValueError, match="must be what an earlier run wrote"):
        runs.read(out, HEADER)


def test_rows_of_another_catalogue_are_refused(tmp_path):
    out = tmp_path / "rows.jsonl"
    out.write_text('{"refattn": "2", "date": "today"}\n')
    with pytest.raises(ValueError, match="name another file"):
        runs.run(["quick:mean_of_v"], out=out, header=HEADER)


def test_the_catalogue_has_one_name_in_all_processes():
    code = "from refattn.teeth.matrix import catalogue; print(catalogue())"
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=DOCS.parent,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ran.stdout.strip() == matrix.catalogue()


def test_quick_samples_come_round():
    names = list(MUTANTS)
    days = [command.quick_tasks(names, day) for day in range(command.SAMPLE)]
    assert all({f"quick:{name}" for name in names} < set(day) for day in days)
    assert set(runs.every_task(names)) - {f"power:{d}" for d in power.DTYPES} <= set().union(*days)
    assert days[1] == command.quick_tasks(names, 1 + command.SAMPLE)


# the command, and pages


def test_the_command(tmp_path, row, monkeypatch):
    monkeypatch.setattr(runs, "_in_processes", lambda tasks, jobs: map(runs.made, tasks))
    monkeypatch.setattr(runs, "inputs", lambda: ("plain-f16", "full-f32"))
    console = Console(record=True, width=120)
    files = {name: tmp_path / f"teeth.{name}" for name in ("json", "html", "markdown")}
    options = [x for name, path in files.items() for x in (f"--{name}", path)]
    found = command.command(parsed("--quick", "--only", "mean_of_v", "--seed", 0, *options), console)
    text = console.export_text()
    assert found == 0 and "1 of 1 mutants killed" in text and "FlashAttention, 2x" in text
    read = command.load(files["json"])
    assert [r["name"] for r in read["mutants"]] == ["mean_of_v"] and read["mutants"][0]["own"] is not None
    assert files["markdown"].read_text() == as_markdown(read) and files["html"].read_text() == as_html(read)
    assert command.command(parsed("--read", files["json"]), Console(quiet=True)) == 0
    read["mutants"][0]["by"] = ""
    files["json"].write_text(json.dumps(read))
    assert command.command(parsed("--read", files["json"]), Console(quiet=True)) == 1


def test_one_mutant_asks_for_no_honest_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_in_processes", lambda tasks, jobs: map(runs.made, tasks))
    console = Console(record=True, width=120)
    assert command.command(parsed("--only", "mean_of_v", "--json", tmp_path / "x.json"), console) == 0
    read = command.load(tmp_path / "x.json")
    assert [len(read[part]) for part in ("mutants", "honest", "power")] == [1, 0, 0]


@pytest.mark.parametrize(
    "options",
    [
        ("--only", "nothing*"), ("--jobs", 0), ("--read", "not/there"), ("--read", __file__),
        ("--read", DOCS / "teeth.json", "--only", "mean_of_v"), ("--read", DOCS / "teeth.json", "--out", "rows.jsonl"),
    ],
)  # fmt: skip
def test_wrong_usage_is_refused(options):
    with pytest.raises(command.CannotBite):
        command.command(parsed(*options), Console(quiet=True))


def test_pages_say_it_all(row):
    dangerous = {**row, "what": "a | b <i> *c*"}
    made = of_row(dangerous, [honest.honest_row("plain-f16")])
    html, markdown = as_html(made), as_markdown(made)
    assert "a | b &lt;i&gt; *c*" in html and "a \\| b \\<i\\> \\*c\\*" in markdown
    for rule in RULES.values():
        assert rule.title.replace(">", "&gt;") in html
    assert "causal\\_top\\_left" in markdown and "No mutant lives" in markdown


def test_the_committed_page_is_current():
    read = command.load(DOCS / "teeth.json")
    assert (DOCS / "TEETH.md").read_text(encoding="utf-8") == as_markdown(read)
    assert [row["name"] for row in read["mutants"]] == list(MUTANTS), "make it anew: docs/TEETH.md says how"
    assert results.faults(read) == [] and (DOCS / "teeth.json").stat().st_size < 300_000
    lines = results.summary_table(read).splitlines()
    assert len(lines) <= 10 and all(line.count("|") == 7 for line in lines)
