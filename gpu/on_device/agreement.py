"""Whether the kernels are right on a device: judged by refattn's derived bounds, at real sizes on sampled rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu.target import SIMULATED
from refattn.masks import Causal, Mask, Window

__all__ = ["Setting", "determinism", "large", "on_device", "small"]


@dataclass(frozen=True)
class Setting:
    """One problem: sizes, dtype, mask and features."""

    kernel: str | None
    dtype: str
    B: int
    H: int
    Hkv: int
    Lq: int
    Lk: int
    D: int
    Dv: int
    mask: Mask | None = None
    backward: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = f"B={self.B} H={self.H}/{self.Hkv} L={self.Lq}x{self.Lk} D={self.D}/{self.Dv}"
        more = "".join(f" {name}" for name in self.options) + (" backward" if self.backward else "")
        return f"{self.kernel or 'default'} {self.dtype} {sizes} {self.mask or ''}{more}"

    def arrays(self, seed: int = 0) -> dict[str, Any]:
        """Inputs on the host: peaked scores, so that a wrong row shows."""
        import torch

        draw = torch.Generator().manual_seed(seed)
        shapes = {"q": (self.B, self.H, self.Lq, self.D), "k": (self.B, self.Hkv, self.Lk, self.D)}
        shapes |= {"v": (self.B, self.Hkv, self.Lk, self.Dv), "dout": (self.B, self.H, self.Lq, self.Dv)}
        x = {n: torch.randn(s, generator=draw) * (2 if n in "qk" else 1) for n, s in shapes.items()}
        x = {n: t.to(getattr(torch, self.dtype)) for n, t in x.items()}
        if "sinks" in self.options:
            x["sinks"] = torch.randn(self.H, generator=draw)
        if "bias" in self.options:
            x["bias"] = torch.randn((1, self.H, self.Lq, self.Lk), generator=draw)
        return x


def on_device(x: dict[str, Any]) -> dict[str, Any]:
    return x if SIMULATED else {n: t.cuda() for n, t in x.items()}


def run(setting: Setting, x: dict[str, Any]) -> dict[str, Any]:
    """out and lse, and the gradients, of tensors where they lie."""
    import gpu

    options = {"mask": setting.mask, "kernel": setting.kernel, **setting.options}
    options |= {n: x[n] for n in ("sinks", "bias") if n in x}
    found = gpu.attention(x["q"], x["k"], x["v"], **options)
    answer = {"out": found.out, "lse": found.lse}
    if setting.backward:
        options["kernel"] = None
        gradients = gpu.attention_grad(x["dout"], x["q"], x["k"], x["v"], found.out, found.lse, **options)
        answer |= {"dq": gradients.dq, "dk": gradients.dk, "dv": gradients.dv}
    return answer


def judged(setting: Setting, rows: int | None) -> dict[str, Any]:
    """One row of the table: the largest ratio to the bound, of `rows` sampled rows or of all."""
    from refattn.judging import judge_arrays

    x = setting.arrays()
    begun = time.perf_counter()
    answer = {n: t.cpu() for n, t in run(setting, on_device(x)).items()}
    took = time.perf_counter() - begun
    given = {n: t for n, t in x.items() if n != "dout" or setting.backward}
    options = {n: v for n, v in setting.options.items() if n in ("scale", "softcap")}
    found = judge_arrays(
        **given, **answer, **options, mask=setting.mask, rows=rows,
        contract_fields={"weights_from_lse": True} if setting.backward else None,
    )  # fmt: skip
    return {"problem": str(setting), "ok": found.status == "passed", "ratio": round(float(found.ratio), 3),
            "rows": rows or "all", "seconds with compilation": round(took, 2)}  # fmt: skip


BR, TL = Causal("bottom_right"), Causal("top_left")
SMALL = (
    Setting(None, "bfloat16", 2, 4, 2, 200, 333, 64, 64, BR, backward=True),
    Setting(None, "float16", 2, 4, 2, 333, 200, 128, 128, TL, backward=True),
    Setting("wgmma", "bfloat16", 1, 4, 2, 300, 400, 64, 64, BR),
    Setting("wgmma", "float16", 1, 2, 1, 200, 333, 128, 128),
    Setting("tensor_core", "bfloat16", 1, 2, 1, 130, 190, 96, 64, Window(70, 10, "bottom_right")),
    Setting("tensor_core", "float16", 1, 4, 1, 100, 300, 256, 256, BR, options={"sinks": True, "softcap": 20.0}),
    Setting("tensor_core", "bfloat16", 1, 3, 1, 77, 99, 40, 24, options={"bias": True, "scale": -0.2}),
    Setting("decode", "bfloat16", 3, 8, 2, 1, 1000, 128, 128),
    Setting("tiled", "float32", 2, 2, 1, 65, 97, 48, 32, BR, backward=True),
    Setting("tiled", "float64", 1, 2, 1, 33, 65, 24, 40, TL),
    Setting("naive", "float32", 1, 2, 1, 17, 33, 16, 8),
)
REHEARSED = (
    Setting("tensor_core", "bfloat16", 1, 2, 1, 20, 33, 32, 32, BR, backward=True),
    Setting("tiled", "float32", 1, 1, 1, 9, 17, 16, 8),
)
LARGE = (
    Setting(None, "bfloat16", 1, 8, 2, 16384, 16384, 128, 128, BR),
    Setting("wgmma", "bfloat16", 1, 8, 2, 16384, 16384, 128, 128, BR),
    Setting(None, "float16", 2, 8, 8, 4097, 8191, 64, 64, Window(1000, 0, "bottom_right")),
    Setting("decode", "float16", 4, 32, 8, 1, 131072, 128, 128),
    Setting(None, "bfloat16", 1, 2, 1, 1023, 1025, 128, 128, BR, backward=True),
)


def small() -> Iterator[dict[str, Any]]:
    """Every kernel on odd shapes, judged element by element."""
    for setting in REHEARSED if SIMULATED else SMALL:
        yield judged(setting, None)


def large() -> Iterator[dict[str, Any]]:
    """Real sizes: forwards on sampled rows, gradients in whole."""
    for setting in () if SIMULATED else LARGE:
        yield judged(setting, None if setting.backward else 48)


def determinism() -> Iterator[dict[str, Any]]:
    """The same bits in a hundred runs."""
    import torch

    settings = REHEARSED[:1] if SIMULATED else (LARGE[-1], LARGE[1], SMALL[7])
    for setting in settings:
        x = on_device(setting.arrays())
        first, runs = run(setting, x), 2 if SIMULATED else 100
        bits = {n: t.view(torch.int16 if t.element_size() == 2 else torch.int32) for n, t in first.items()}
        differ = 0
        for _ in range(runs - 1):
            again = run(setting, x)
            differ += any(not torch.equal(bits[n], t.view(bits[n].dtype)) for n, t in again.items())
        yield {"problem": str(setting), "ok": differ == 0, "runs": runs, "runs that differ": differ}


def host(x: Any) -> Any:
    return np.asarray(x.cpu())
