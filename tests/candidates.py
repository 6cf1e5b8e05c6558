"""Candidates of every sort, good and bad; tests copy this file to a folder of their own as my_kernel.py."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

LOADED_BEFORE = sorted(sys.modules)

import numpy as np  # noqa: E402

from refattn import attention, attention_grad  # noqa: E402
from refattn.case import GRADIENTS, NAMES, OUTPUTS, Case, Dense  # noqa: E402
from refattn.dtypes import FORMATS, round_to  # noqa: E402
from refattn.implementation import implementation  # noqa: E402
from refattn.precision import Conventions, Unsupported, preset  # noqa: E402
from refattn.streaming import implementation as streaming  # noqa: E402

ALL = NAMES
DIRECT = frozenset(OUTPUTS + GRADIENTS)


def install(folder: Path, name: str = "my_kernel") -> Path:
    return Path(shutil.copy(__file__, folder / f"{name}.py"))


def solve(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is true, in the dtypes of the contract; of what the oracle is not handed as it is, what our kernel says."""
    others = (case.score_mod, case.dropout, case.rotary, case.quant)
    if not isinstance(case.storage, Dense) or any(x is not None for x in others) or not case.want <= DIRECT:
        return streaming(case, given)
    options = {"mask": case.visibility, "bias": given.get("bias"), "sinks": given.get("sinks")}
    options |= {"scale": case.scale, "softcap": case.softcap}
    q, k, v = given["q"], given["k"], given["v"]
    found = attention(q, k, v, **options)._asdict()
    if case.backward:
        found |= attention_grad(q, k, v, given["dout"], given.get("dlse"), **options)._asdict()
    dtypes = dict.fromkeys(ALL, case.dtype) | {"out": case.out_dtype}
    dtypes["lse"] = preset(case.dtype, case.out_dtype).lse
    dtypes |= dict.fromkeys(("dscale", "dsoftcap"), preset(case.dtype, case.out_dtype).accumulate)
    dtypes["dbias"] = case.bias.dtype if case.bias else ""
    return {n: round_to(found[n], dtypes[n]).astype(FORMATS[dtypes[n]].dtype) for n in case.want}


@implementation(name="honest", version="1.2", outputs=ALL)
def honest(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    return solve(case, given)


@implementation(name="torch honest", arrays="torch", outputs=ALL)
def honest_torch(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    from refattn.exchange import from_torch, to_torch

    if not all(isinstance(x, torch.Tensor) for x in given.values()):
        raise TypeError("not all are tensors")
    found = solve(case, {name: from_torch(x) for name, x in given.items()})
    return {name: to_torch(x).requires_grad_() for name, x in found.items()}


def plain(q: Any, k: Any, v: Any, *, mask: Any = None) -> Any:
    return attention(q, k, v, mask=mask).out.astype(q.dtype)


def refuses_all(q: Any, k: Any, v: Any, *, mask: Any = None) -> Any:
    raise Unsupported("not today")


@implementation(name="nan rows", outputs=("out",), conventions=Conventions(empty_rows="nan"))
def nan_rows(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    found = solve(case, given)
    found["out"][~case.visibility.tile().any(-1)] = np.nan
    return {"out": found["out"]}


@implementation(name="coy nan rows", outputs=("out",))
def undeclared_nan_rows(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    return nan_rows.function(case, given)  # type: ignore[no-any-return]


def _loose(case: Case) -> Any:
    return replace(preset(case.dtype, case.out_dtype), exp_ulp=64.0, source="the manual, page 7")


@implementation(name="loose", outputs=("out",), precision=_loose)
def loose(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    return solve(case, given)


@implementation(name="sourceless", outputs=("out",), precision=lambda case: replace(_loose(case), source=""))
def sourceless(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    return solve(case, given)


@implementation(name="causal always", outputs=("out",))
def ignores_masks(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    return solve(replace(case, mask=None, want=frozenset({"out"})), given)


class Base(BaseException):
    pass


def _answer(**changes: Any) -> Any:
    return lambda found, given: {**found, **{name: change(found, given) for name, change in changes.items()}}


def _raise(error: BaseException) -> Any:
    def run(found: Any, given: Any) -> Any:
        raise error

    return run


def _in_place(found: Any, given: Any) -> Any:
    given["k"][...] = 0
    return found


def _spawn_and_sleep(found: Any, given: Any) -> Any:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path("grandchild.pid").write_text(str(child.pid))
    time.sleep(60)


def _fork_and_die(found: Any, given: Any) -> Any:
    if os.fork() == 0:
        time.sleep(60)
    os._exit(5)


def _chatter(found: Any, given: Any) -> Any:
    print("chatter " * 2000)
    os.write(1, b"from below\n")
    return found


def _where(found: Any, given: Any) -> Any:
    loaded = [m for m in ("torch", "numba", "scipy", "rich", "hypothesis") if m in LOADED_BEFORE]
    raise RuntimeError(f"cwd on path {os.getcwd() in sys.path}, loaded {loaded}")


DEEDS = {
    "nothing": lambda found, given: found,
    "exit0": lambda found, given: os._exit(0),
    "exit3": lambda found, given: os._exit(3),
    "segfault": lambda found, given: ctypes.string_at(0),
    "sleep": lambda found, given: time.sleep(60),
    "spawn-and-sleep": _spawn_and_sleep,
    "fork-and-die": _fork_and_die,
    "sys-exit": lambda found, given: sys.exit(0),
    "base": _raise(Base("out of the ordinary")),
    "memory": lambda found, given: np.empty(1 << 50),
    "raise": lambda found, given: np.linalg.inv(np.zeros((2, 2))),
    "unsupported": _raise(Unsupported("D=8 is too small")),
    "in-place": _in_place,
    "alias": _answer(out=lambda found, given: given["v"]),
    "none": lambda found, given: None,
    "list": _answer(out=lambda found, given: found["out"].tolist()),
    "objects": _answer(out=lambda found, given: found["out"].astype(object)),
    "no-lse": lambda found, given: {"out": found["out"]},
    "shape": _answer(out=lambda found, given: found["out"][..., :-1]),
    "dtype": _answer(out=lambda found, given: found["out"].astype(np.float64)),
    "nan": _answer(out=lambda found, given: found["out"] * np.nan),
    "chatter": _chatter,
    "where": _where,
}  # fmt: skip


def _supports(case: Case) -> str | None:
    if case.id == "supports-raises":
        raise KeyError("lost")
    if case.id == "supports-exits":
        os._exit(9)
    return "on principle" if case.id == "refused" else None


@implementation(name="deeds", outputs=("out", "lse"), supports=_supports)
def deeds(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    """Does what the case's id says."""
    return DEEDS[case.id](solve(case, given), given)  # type: ignore[no-any-return,operator]
