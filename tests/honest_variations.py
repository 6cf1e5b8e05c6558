"""Honest kernels that differ in what implementers choose freely: each is right, and the judge must let it pass.

A `Variation` is a subclass of `Rules` (tests/honest_rules.py), a `Schedule` and the contract it declares.  `judged`
has it solve one case and judges the answer; every case is asked of every variation that applies:

    python -m tests.honest_variations --out FILE [--jobs N] [--only TEXT] [--seconds S] [--largest SCORES]
    python -m tests.honest_variations --out FILE --summary docs/honest.json

A line of JSON for each pair goes to FILE, smallest cases first; what is there already, judged by the bounds as they
are, is not run again, so that a kill loses nothing.  The last line of a pair counts; the summary says how many were
judged by earlier bounds.  `ratio` is the largest of all outputs; those of 16 bits reach 1 whenever an answer is one
end of an interval of two neighbouring numbers, so `fine` is that of outputs as wide as the accumulators.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from refattn.case import MATRICES, Case
from refattn.cases import CASES, by_id
from refattn.dtypes import FORMATS
from refattn.inputs import Problem, make
from refattn.judge import Verdict, judge
from refattn.precision import Conventions, Precision, preset
from refattn.streaming import Rules, Schedule, Streaming
from refattn.truth import Expected, quick_truth, truth
from tests import honest_rules as rules
from tests import honest_sums as sums
from tests.written_lines import read


@dataclass(frozen=True)
class Variation:
    """`changes` are those of the declared contract; "dtype" and "out" stand for the case's own."""

    name: str
    what: str
    rules: type[Rules] = Rules
    schedule: Schedule = Schedule(64, 64)
    changes: tuple[tuple[str, Any], ...] = ()
    dtypes: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    matrices: bool = True

    def applies(self, case: Case) -> bool:
        """Whether the variation is within its contract there: no contract covers an overflow inside the kernel.

        Logits near the lowest number of a format overflow once they are multiplied by log2(e): the judge rightly
        fails such kernels (mask-lowest-bf16: lse is +inf where a part of the keys is masked so alone).
        """
        lowest = case.bias is not None and case.bias.family == "finite_min"
        base_2 = self.schedule.exp == "exp2" or self.rules is rules.Log2Domain
        fits = case.dtype in self.dtypes and not (base_2 and lowest)
        return fits and (self.matrices or case.want.isdisjoint(MATRICES))

    def contract(self, case: Case) -> Precision:
        own = {"dtype": case.dtype, "out": case.out_dtype}
        usual = preset(case.dtype, case.out_dtype)
        changes: dict[str, Any] = {}
        for field, value in self.changes:
            changes[field] = own.get(value, value) if isinstance(value, str) else value
        return replace(usual, source="declared by the variation", **changes) if changes else usual


@dataclass(frozen=True)
class Kernel(Streaming):
    variation: Variation = Variation("honest", "")

    def precision(self, case: Case) -> Precision:
        return self.variation.contract(case)


LOW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
HALF = ("float16", "bfloat16")
FLOATS = ("float32", *LOW)
TRUNCATED = (("accumulate_rounding", "truncate"),)
EAGER = (("scores", "dtype"), ("weights_normalised", True))

VARIATIONS: tuple[Variation, ...] = (
    Variation("whole", "all scores of a head at once", schedule=Schedule(1 << 20, 1 << 20)),
    Variation("tiles_16_16", "tiles of 16 x 16", schedule=Schedule(16, 16)),
    Variation("tiles_128_64", "tiles of 128 x 64", schedule=Schedule(128, 64)),
    Variation("tiles_64_128", "tiles of 64 x 128", schedule=Schedule(64, 128)),
    Variation("tiles_1_16", "row by row, 16 keys at a time", schedule=Schedule(1, 16)),
    Variation("tiles_5_17", "tiles that divide nothing", schedule=Schedule(5, 17)),
    Variation("tiles_128_32_reverse", "the last keys first", schedule=Schedule(128, 32, "reverse")),
    Variation("tiles_16_reverse", "16 keys at a time, the last first", schedule=Schedule(64, 16, "reverse")),
    Variation("tiles_32_random", "tiles in random order", schedule=Schedule(32, 32, "random", seed=1)),
    Variation("tiles_16_random", "tiles of 16 keys in random order", schedule=Schedule(64, 16, "random", seed=2)),
    *(
        Variation(f"splits_{schedule.splits}", f"{schedule.splits} parts with a state each, merged", schedule=schedule)
        for schedule in (
            Schedule(64, 64, splits=2), Schedule(64, 16, splits=3, exp="exp2"), Schedule(64, 32, "reverse", 4),
            Schedule(64, 16, "random", 5), Schedule(64, 17, splits=6, exp="numpy"), Schedule(64, 16, splits=7),
        )
    ),
    Variation("exp2", "exp2 with a float32 log2(e), one fused multiply-add", schedule=Schedule(64, 64, exp="exp2")),
    Variation("exp2_16", "the same, 16 keys at a time", schedule=Schedule(64, 16, exp="exp2")),
    Variation("exp_numpy", "NumPy's exp in the accumulators' dtype", schedule=Schedule(64, 64, exp="numpy")),
    Variation("exp_polynomial", "exp2 by a polynomial of degree 7", rules.Polynomial, dtypes=FLOATS),
    Variation("exp_off_2_ulp", "exp off by up to 2 ulp, either way", rules.NoisyExp, dtypes=FLOATS),
    Variation("exp_high_2_ulp", "exp 2 ulp too large throughout", rules.HighExp, dtypes=FLOATS),
    Variation("exp_cubic", "exp2 by a cubic polynomial, off by 9e-5", rules.Cubic, dtypes=HALF,
              changes=(("exp_ulp", 2000.0),)),
    Variation("log2_domain", "logits times log2(e) beforehand, maxima and lse in base 2", rules.Log2Domain,
              dtypes=FLOATS, matrices=False),
    Variation("lazy_8", "rescaling only once the maximum grew by 8 ln 2", rules.Lazy, Schedule(64, 16)),
    Variation("lazy_splits", "the same in 3 parts", rules.Lazy, Schedule(64, 16, splits=3)),
    Variation("sentinel", "maxima begin at the smallest number, not at -inf", rules.Sentinel, Schedule(64, 16),
              dtypes=FLOATS),
    Variation("parts_normalised", "each part is divided by its sum, parts merge by lse", rules.NormalisedParts,
              Schedule(64, 32, splits=3)),
    Variation("reciprocal", "times 1 / l, not divided by l", rules.Reciprocal),
    Variation("sequential", "one key after the other, one feature after the other", sums.Sequential),
    Variation("sequential_fma", "the same, by fused multiply-adds", sums.SequentialFma, dtypes=FLOATS),
    Variation("sequential_back", "the last key and feature first", sums.Backwards),
    Variation("tree", "sums by halves, down to one product", sums.Tree),
    Variation("lanes_4", "four accumulators, added at the end", sums.Lanes),
    Variation("k_steps_8", "products by blocks of 8, blocks one after the other", sums.Blocks),
    Variation("truncated_16", "16 products exactly, then truncated to float32, as in tensor cores", sums.Truncated,
              dtypes=LOW),
    Variation("truncated_8", "8 products exactly, then truncated", sums.TruncatedEight, dtypes=LOW,
              changes=TRUNCATED),
    Variation("truncated_1", "each product added, then truncated", sums.TruncatedEach, dtypes=LOW,
              changes=TRUNCATED),
    Variation("accumulate_f64", "accumulators of float64 under a contract of float32", rules.Double, dtypes=FLOATS),
    Variation("compensated", "row sums and products in float64, all else in float32", sums.Compensated,
              dtypes=FLOATS),
    Variation("unrounded_weights", "weights stay in float32, under the usual contract", rules.Unrounded, dtypes=LOW),
    Variation("weights_f16", "weights in float16 where values are bfloat16", rules.HalfWeights, dtypes=("bfloat16",)),
    Variation("contract_f32_weights", "a contract without rounded weights", changes=(("weights", None),), dtypes=LOW),
    Variation("contract_f8_weights", "weights of 8 bits", changes=(("weights", "float8_e4m3fn"),),
              dtypes=("float8_e4m3fn", "float8_e5m2")),
    Variation("rounded_sum", "the row sum adds rounded weights", changes=(("sum_rounded_weights", True),),
              dtypes=LOW),
    Variation("normalised", "weights are normalised, then rounded", changes=(("weights_normalised", True),)),
    Variation("eager", "scores stored in 16 bits, weights normalised", schedule=Schedule(1 << 20, 1 << 20),
              changes=EAGER, dtypes=HALF),
    Variation("scaled_q", "q times scale, in 16 bits", changes=(("scaled_q", "dtype"),), dtypes=HALF),
    Variation("scaled_q_f32", "q times scale, in float32", changes=(("scaled_q", "float32"),), dtypes=FLOATS),
    Variation("dequantised", "quantised inputs brought to 16 bits", changes=(("dequantised", "dtype"),), dtypes=HALF),
    Variation("unrotated_rounding", "rotated q and k stay in float32", rules.WideRotation, dtypes=HALF),
    Variation("blocked_gradients", "gradients added up in the output's dtype",
              changes=(("grad_q_block", 32), ("grad_k_block", 64)), dtypes=FLOATS),
    Variation("per_head", "dk and dv of each head rounded before they are added", rules.PerHead,
              changes=(("grad_per_head", True),), dtypes=FLOATS),
    Variation("flushed", "subnormal weights and outputs are zero", rules.Flushed,
              changes=(("flush_subnormal", True),), dtypes=HALF),
    Variation("rough_tanh", "tanh off by 2**-11", rules.RoughTanh, changes=(("tanh_error", 2.0**-11),), dtypes=HALF),
)  # fmt: skip


TOLD_BY = (
    "paged-64-f32", "grad-bias-padding-bf16", "dscale-gqa-f16", "offset-e4m3", "rotary-base-1e6-bf16", "d0-grad-f64",
    "int8-out-f32-bf16", "dropout-softcap-grad-bf16", "blocks-x-decode-f16", "longformer-k-lens-grad-f32",
)  # fmt: skip


def bounds() -> str:
    """By what answers are judged: a digest of the widths of intervals in some cases, to two digits."""
    widths = []
    for id in TOLD_BY:
        case = by_id(id)
        for name, e in sorted(truth(make(case), preset(case.dtype, case.out_dtype)).items()):
            finite = np.isfinite(e.hi) & np.isfinite(e.lo)
            widths.append(f"{id} {name} {(e.hi[finite] - e.lo[finite]).sum():.1e}")
    return hashlib.sha256("\n".join(widths).encode()).hexdigest()[:12]


def scores_of(case: Case) -> int:
    return case.scores


def judged(variation: Variation, problem: Problem, expected: dict[str, Expected] | None = None) -> Verdict:
    """The verdict of the suite's judge on the variation's answer, under the contract it declares."""
    case = problem.case
    kernel = Kernel(rules=variation.rules, schedule=variation.schedule, variation=variation)
    with np.errstate(all="ignore"):
        answer = kernel(case, problem.fresh())
    contract = kernel.precision(case)
    return judge(problem, answer, contract, Conventions(), outputs=case.want, expected=expected)


def lines_of(case: Case, variations: Iterable[Variation]) -> Iterator[dict[str, Any]]:
    """A line for each variation; those with the same contract share the truth."""
    problem = make(case)
    known: dict[Precision, dict[str, Expected]] = {}
    for variation in variations:
        began = time.perf_counter()
        contract = variation.contract(case)
        if contract not in known:
            known[contract] = quick_truth(problem, replace(contract, source=""))
        try:
            verdict = judged(variation, problem, known[contract])
        except Exception as e:  # an honest kernel must not raise: it is told, and counts as an alarm
            yield {"case": case.id, "variation": variation.name, "status": "failed", "raised": repr(e)[:200]}
            continue
        worst = max(verdict.outputs, key=lambda output: output.ratio, default=None)
        line: dict[str, Any] = {"case": case.id, "variation": variation.name, "status": verdict.status}
        if worst is not None:
            wide = FORMATS[contract.accumulate].bits
            fine = [o for o in verdict.outputs if FORMATS[known[contract][o.name].dtype].bits >= wide]
            finest = max(fine, key=lambda output: output.ratio, default=worst)
            line |= {
                "output": worst.name, "ratio": round(worst.ratio, 4),
                "fine": round(max((o.ratio for o in fine), default=0.0), 4), "fine_output": finest.name,
                "rigorous": round(max((o.rigorous_ratio for o in fine), default=0.0), 4),
            }  # fmt: skip
        if verdict.reasons:
            line["reasons"] = list(verdict.reasons)
        yield line | {"seconds": round(time.perf_counter() - began, 3)}


def _run(done: set[tuple[str, str]], only: str, index: int) -> list[dict[str, Any]]:
    case = ORDER[index]
    left = [v for v in VARIATIONS if v.applies(case) and (case.id, v.name) not in done and only in v.name]
    return list(lines_of(case, left)) if left else []


ORDER = sorted(CASES, key=scores_of)


def coarse(line: dict[str, Any]) -> bool:
    """Whether the worst output is narrower than the accumulators: dbias of a float32 bias among float64."""
    case = by_id(line["case"])
    narrow = case.bias is not None and case.bias.dtype != "float64"
    return narrow and case.dtype == "float64" and line.get("fine_output") == "dbias"


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What docs/honest.json holds: of each variation its pairs, alarms and largest ratio."""
    rows: dict[str, Any] = {}
    lines = list({(line["case"], line["variation"]): line for line in lines}.values())
    now, total, earlier = bounds(), 0, 0
    for v in VARIATIONS:
        wanted = {case.id for case in CASES if v.applies(case)}
        total += len(wanted)
        own = [line for line in lines if line["variation"] == v.name and line["case"] in wanted]
        earlier += sum(line.get("bounds") != now for line in own)
        worst = max((line for line in own if not coarse(line)), key=lambda line: line.get("fine", 0.0), default={})
        rows[v.name] = {
            "what": v.what, "contract": {k: x for k, x in v.changes}, "pairs": len(own), "of": len(wanted),
            "alarms": [f"{line['case']} {line.get('output', '')} {line.get('ratio', line.get('raised'))}"
                       for line in own if line["status"] != "passed"],
            "ratio": max((line.get("ratio", 0.0) for line in own), default=None),
            "fine_ratio": worst.get("fine"), "at": f"{worst.get('case')} {worst.get('fine_output')}",
            "rigorous": worst.get("rigorous"),
        }  # fmt: skip
    return {
        "made": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__},
        "command": "python -m tests.honest_variations --out FILE --summary docs/honest.json",
        "cases": len(CASES), "variations": len(VARIATIONS),
        "bounds": now, "pairs": sum(row["pairs"] for row in rows.values()), "of": total, "by earlier bounds": earlier,
        "alarms": sum(len(row["alarms"]) for row in rows.values()), "rows": rows,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--largest", type=int, default=1 << 40, help="leave out cases with more scores")
    parser.add_argument("--only", default="", help="variations whose name has this text")
    parser.add_argument("--summary", type=Path, help="write the summary of what FILE has, and run nothing")
    options = parser.parse_args(arguments)
    found = read(options.out)
    if options.summary:
        options.summary.write_text(json.dumps(summary(found), indent=1) + "\n")
        return
    now = bounds()
    done = {(line["case"], line["variation"]) for line in found if line.get("bounds") == now}
    indices = [i for i, case in enumerate(ORDER) if scores_of(case) <= options.largest]
    began, alarms = time.monotonic(), 0
    with options.out.open("a") as file, multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        if file.tell() and not options.out.read_text().endswith("\n"):
            file.write("\n")
        for n, lines in enumerate(pool.imap(partial(_run, done, options.only), indices), 1):
            for line in lines:
                alarms += line["status"] != "passed"
                file.write(json.dumps(line | {"bounds": now}) + "\n")
                if line["status"] != "passed":
                    print(line, flush=True)
            file.flush()
            if n % 20 == 0:
                print(f"{n} of {len(indices)} cases, {alarms} alarms", file=sys.stderr, flush=True)
            if time.monotonic() - began > options.seconds:
                pool.terminate()
                break


if __name__ == "__main__":
    main()
