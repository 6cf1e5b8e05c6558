"""What the mutants of the kernel are asked: small cases, each under a contract and a schedule, fast ones first.

Every feature of the cases occurs, and every branch of the kernel that a contract or a schedule takes: a probe is
the id of a case, the name of a contract (`refattn.honest.CONTRACTS`) and a schedule.  The truth of each is
computed once, by the oracle: none has so many scores that `refattn.truth` would ask `refattn.streaming`.
"""

from __future__ import annotations

import importlib
import sys
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

import refattn
from refattn import online
from refattn.case import Case, Strided
from refattn.cases import CASES, by_id
from refattn.dtypes import FORMATS
from refattn.honest import _contract
from refattn.inputs import Problem, make
from refattn.judge import Verdict, judge
from refattn.precision import Conventions, Precision, preset
from refattn.truth import Expected, truth
from tests.kernel_mutation_sites import FILES, PACKAGE, Site

SCHEDULES: dict[str, dict[str, Any]] = {
    "usual": {"tile_q": 64, "tile_k": 64},
    "small": {"tile_q": 5, "tile_k": 17},
    "reverse": {"tile_q": 8, "tile_k": 16, "order": "reverse", "exp": "exp2"},
    "random": {"tile_q": 16, "tile_k": 16, "order": "random", "seed": 3, "splits": 2},
    "splits": {"tile_q": 7, "tile_k": 16, "splits": 3, "exp": "numpy"},
    "rows": {"tile_q": 1, "tile_k": 1024},
    "narrow": {"tile_q": 64, "tile_k": 16},
}


CONTRACTS: dict[str, dict[str, Any]] = {
    "flushed": {"flush_subnormal": True},
    "f8-weights": {"weights": "float8_e4m3fn"},
    "normalised": {"weights_normalised": True},
    "truncating": {"accumulate_rounding": "truncate"},
    "long-blocks": {"grad_q_block": 512, "grad_k_block": 2048},
}
"""besides those of `refattn.honest.CONTRACTS`, in whose names a - stands for the space"""


@dataclass(frozen=True)
class Probe:
    id: str
    contract: str = "preset"
    schedule: str = "small"

    @property
    def name(self) -> str:
        return " ".join((self.id, *(x for x in (self.contract, self.schedule) if x not in ("preset", "small"))))

    @property
    def case(self) -> Case:
        return by_id(self.id)

    @property
    def precision(self) -> Precision:
        usual = preset(self.case.dtype, self.case.out_dtype)
        if self.contract in CONTRACTS:
            return replace(usual, **CONTRACTS[self.contract])
        return _contract(self.contract.replace("-", " "), usual)


PROBES: tuple[Probe, ...] = tuple(
    Probe(*row.split())
    for row in """
    bias-queries-f32
    some-rows-masked-bf16
    mod-all-masked-f32
    cache-alone-bf16
    cache-rotary-f64
    scores-cache-f32
    e4m3-paged-1-bf16 dequantised
    paged-empty-f32
    scores-blhd-f64 preset splits
    mask-lowest-bf16 preset reverse
    scores-mod-f64
    empty-rows-sinks-grad-f64
    q8-d256-f32
    biased-minus-10000-bf16 eager
    biased-finite-min-f32
    dropout-bias-grad-f64 preset reverse
    cache-dropout-mod-f32
    cache-decode-bf16 preset splits
    packed-dv-wide-f32
    dbias-alone-f64 preset random
    paged-tree-bf16
    paged-alibi-f32
    dscale-bias-f32 preset reverse
    paged-16-decode-bf16 preset reverse
    paged-e4m3-sinks preset splits
    gathered-first-none-bf16
    hbld-rotary-mod-f32
    dropout-mod-grad-f64
    rotary-scale-grad-f32
    int8-out-f32-bf16
    scores-softcap-bias-causal-f32
    paged-window-f64
    e5m2-packed-f32
    mod-parabola-grad-f64
    lse-alone-alibi-signed-bf16 preset random
    bhdl-dropout-bf16 eager
    lbhd-dropout-grad-f32
    dscale-dilated-f32
    paged-256-bf16 rounded-sum
    grad-bias-minus-inf-f32
    q4-dropout-f32
    mod-lbhd-bf16 eager
    gathered-x-bias-f16
    grad-bias-padding-bf16 blocked-gradients
    grad-bias-lse-f16 preset reverse
    dropout-packed-gap-grad-bf16
    mod-bias-grad-f16 preset usual
    dscale-gqa-f16 unrounded-weights
    packed-no-keys-sinks-bf16
    offset-e4m3
    shared-chunks-e4m3
    rotary-base-1e6-bf16
    dsoftcap-sinks-blocks-bf16
    dsoftcap-sinks-blocks-bf16 eager reverse
    rotary-documents-f32
    longformer-k-lens-grad-f32
    bias-padding-f32
    bias-padding-f32 preset usual
    mod-pairs-f64
    mask-minus-1e9-bf16 scaled-q
    paged-64-f32 preset reverse
    paged-64-f32 preset splits
    paged-64-f32 preset random
    grad-bias-queries-lse-f32
    scores-mod-gqa-bf16
    gathered-first-none-bf16 eager
    gathered-per-head-f16 normalised
    grad-v-of-k-bf16 blocked-gradients
    no-keys-f32
    dscale-empty-rows-f32
    e5m2-qkv-tensor-f32
    rising-bf16 preset reverse
    no-keys-sinks-bf16
    d0-f32
    d0-grad-f64
    dsoftcap-far-below-f64
    dropout-1-grad-f64
    dropout-1-sinks-bf16
    tree-x-softcap-f64
    dsoftcap-saturated-bf16
    dsoftcap-f32 preset splits
    gathered-x-bias-f16 flushed
    paged-e4m3-sinks f8-weights
    tree-window-f16 scaled-q
    dilated-x-softcap-f16
    dsoftcap-k-lens-f32
    q-lens-0-bf16
    packed-bias-grad-f32
    rotary-ragged-grad-f64
    documents-x-dscale-f16
    global-x-mod-f32
    dilated-x-scores-bf16
    mask-lowest-grad-f32
    first-x-dlse-bf16
    chunks-x-packed-f32
    mod-sinks-grad-f32
    bias-queries-f32 truncating
    grad-bias-padding-bf16 truncating reverse
    offset-bf16 preset usual
    k-lens-0-sinks-minus-inf-f32
    value-of-all-f32
    rotary-no-keys-f32
    mod-hides-f32
    mod-hides-causal-br-bf16
    grad-keys-4k-bf16 long-blocks rows
    grad-keys-4k-bf16 long-blocks narrow
    """.strip().splitlines()
)


@cache
def problem(id: str) -> Problem:
    return make(by_id(id))


@cache
def expected(probe: Probe) -> dict[str, Expected]:
    return truth(problem(probe.id), probe.precision)


def more() -> list[Probe]:
    """What a mutant that passes all PROBES is asked besides: every case as small, under a schedule in turn."""
    small = [c for c in CASES if c.scores <= 1 << 12 and not isinstance(c.storage, Strided)]
    turns = [(c, list(SCHEDULES)[n % len(SCHEDULES)]) for n, c in enumerate(small)]
    return [*PROBES, *(Probe(c.id, "preset", turn) for c, turn in turns)]


# the kernel, from mutated source


@cache
def _compiled(name: str) -> CodeType:
    path = FILES.get(name, PACKAGE / "streaming" / f"{name}.py")
    return compile(path.read_bytes(), str(path), "exec")


def kernel(site: Site | None, name: str = "refattn._mutated_kernel") -> ModuleType:
    """`refattn.streaming` under another name, with one of its files (or `refattn.online`) mutated.

    What judges is loaded already, and keeps what it has.
    """

    def load(file: str, to: str, package: str) -> ModuleType:
        mutated = site is not None and site.file == file
        code = compile(site.source, f"{file} mutated", "exec") if mutated and site else _compiled(file)
        module = ModuleType(to)
        module.__package__ = package
        if file == "__init__":
            module.__path__ = []
        sys.modules[to] = module
        if file != "__init__":
            exec(code, module.__dict__)  # noqa: S102 - it is the kernel's own source
        return module

    for loaded in [m for m in sys.modules if m.startswith(name)]:
        del sys.modules[loaded]
    other = load("online", f"{name}_online", "refattn") if site is not None and site.file == "online" else online
    try:
        refattn.online = sys.modules["refattn.online"] = other
        package = load("__init__", name, name)
        for part in ("arguments", "rules", "forward", "backward", "matrices", "prepare"):
            setattr(package, part, load(part, f"{name}.{part}", name))
        exec(_compiled("__init__"), package.__dict__)
    finally:
        refattn.online = sys.modules["refattn.online"] = online
    return package


def verdict(package: ModuleType, probe: Probe) -> Verdict:
    """The judge's verdict on a kernel; may raise what the kernel raises."""
    contract = probe.precision
    made = type("Kernel", (package.Streaming,), {"precision": lambda self, case: contract})
    run = made(schedule=package.Schedule(**SCHEDULES[probe.schedule]))
    with np.errstate(all="ignore"):
        answer = run(probe.case, problem(probe.id).fresh())
    names = probe.case.want
    return judge(problem(probe.id), answer, contract, Conventions(), outputs=names, expected=expected(probe))


def only_whether() -> None:
    """Have the judge of this process not look for explanations of a failure: only whether it is one counts."""
    module = importlib.import_module("refattn.judge")
    for name in ("undeclared", "other_contract"):
        setattr(module, name, lambda *args: ())
    assert FORMATS and Path(module.__file__ or "").name == "judge.py"


def first_failing(package: ModuleType, probes: list[Probe]) -> tuple[Probe, str] | None:
    """The first probe that a kernel fails, and how; None if it passes all."""
    for probe in probes:
        try:
            found = verdict(package, probe)
        except Exception as e:
            return probe, f"raised {type(e).__name__}"
        if found.status != "passed":
            bad = next((f"{o.name} {o.ratio:.3g}" for o in found.outputs if not o.passed), "")
            return probe, bad or found.reasons[0][:60]
    return None


def warm_up(probes: list[Probe]) -> float:
    """Compute all truths and have the honest kernel pass; seconds that its run took."""
    for probe in probes:
        expected(probe)
    began = time.perf_counter()
    found = first_failing(kernel(None), probes)
    if found:
        raise ValueError(f"the honest kernel fails {found[0].name}: {found[1]}; the probe is not within its contract")
    return time.perf_counter() - began
