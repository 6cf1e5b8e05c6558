"""The attention functions of transformers: eager ones of its models, and the one that calls torch's SDPA.

`transformers` is llama's eager function (most models share it), `transformers-gemma2` has a softcap,
`transformers-gpt_oss` sinks, `transformers-sdpa` is `sdpa_attention_forward`.  As its models do, masks are handed
over with the smallest finite number for hidden keys (eager) or as booleans (sdpa), a bias as part of the mask (eager)
or as `position_bias` (sdpa).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from ..case import Case
from ..exchange import from_torch, to_torch
from ..oracle import scale_of
from ..precision import Conventions, Precision, eager, preset
from .adapter import Adapter, hides, is_causal, visible
from .torch.sdpa import FLUSHED, flushes
from .torch.sdpa import default as torch_sdpa

__all__ = ["default", "gemma2", "gpt_oss", "sdpa"]

HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class ModelAttention(Adapter):
    """`function` of `module`; the eager ones return weights too."""

    module: str = ""
    function: str = "eager_attention_forward"

    def refuses(self, case: Case) -> str | None:
        if self.eager and case.dtype in HALVES:  # no contract has a bound for a rounding more
            if case.bias is not None or case.softcap is not None:
                return f"{'bias' if case.softcap is None else 'softcap'} applied in {case.dtype}"
        if not self.eager and 0 in (case.B, case.H, case.Lq, case.Dv):
            return "a size of 0"  # its reshape(B, -1, Lq, Dv) raises
        if "sinks" in self.takes and case.sinks is None:
            return "needs sinks"
        return None

    @property
    def eager(self) -> bool:
        return "weights" in self.outputs

    def precision(self, case: Case) -> Precision:
        if not self.eager:
            return torch_sdpa.precision(case)
        if case.dtype == "float32" or "sinks" in self.takes:
            return preset(case.dtype)
        if case.dtype == "float64":
            source = f"{self.module}: softmax(dtype=torch.float32), whatever the inputs"
            return replace(preset("float64"), accumulate="float32", source=source)
        flush = case.dtype == "bfloat16" and flushes()
        source = f"{self.module}: matmul, * scaling, softmax in float32, .to(query.dtype), matmul"
        return replace(eager(case.dtype), flush_subnormal=flush, source=f"{source}; {FLUSHED}" if flush else source)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import torch

        names = [n for n in ("q", "k", "v", "bias", "sinks") if n in given]
        x = {n: to_torch(given[n]).requires_grad_(case.backward) for n in names}
        layer = SimpleNamespace(num_key_value_groups=case.H // case.Hkv, training=False, sinks=x.get("sinks"))
        options: dict[str, Any] = {"scaling": scale_of(case.scale, case.D)}
        if case.softcap is not None:
            options["softcap"] = case.softcap
        mask = torch.from_numpy(visible(case)) if hides(case) else None
        if self.eager:
            mask = _additive(mask, x.get("bias"), x["q"].dtype)
        else:
            causal = is_causal(case) and case.Lq != 1
            options["is_causal"] = causal  # with one query it would mean decoding, which sees all keys
            mask = None if causal else mask
            if "bias" in x:
                options["position_bias"] = x["bias"].expand(case.B, case.H, case.Lq, case.Lk)
        attend = getattr(importlib.import_module(self.module), self.function)
        out, weights = attend(layer, x["q"], x["k"], x["v"], mask, **options)
        answer = {"out": out.transpose(1, 2)} | ({} if weights is None else {"weights": weights})
        wanted = [n for n in names if "d" + n in case.want]
        if wanted:
            found = torch.autograd.grad(answer["out"], [x[n] for n in wanted], to_torch(given["dout"]))
            answer |= {"d" + n: g for n, g in zip(wanted, found, strict=True)}
        return {n: from_torch(a) for n, a in answer.items()}


def _additive(seen: Any, bias: Any, dtype: Any) -> Any:
    """The mask as models make it: the smallest finite number where hidden, else the bias or 0."""
    import torch

    if seen is None:
        return bias
    return torch.where(seen, torch.zeros((), dtype=dtype) if bias is None else bias, torch.finfo(dtype).min)


def _model(name: str, *features: str, gradients: frozenset[str] = frozenset()) -> ModelAttention:
    return ModelAttention(
        f"transformers {name} eager",
        "transformers",
        takes=frozenset({"bias", "mask", "gqa", "D!=Dv", "scale", *features}),
        dtypes=frozenset({"float64", "float32", *HALVES}),
        outputs=frozenset({"out", "weights", "dq", "dk", "dv", "dbias"}) | gradients,
        conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks", empty_rows="mean_all"),
        module=f"transformers.models.{name}.modeling_{name}",
    )


default = _model("llama")
gemma2 = _model("gemma2", "softcap")
gpt_oss = replace(
    _model("gpt_oss", "sinks", gradients=frozenset({"dsinks"})),
    dtypes=frozenset({"float64", "float32"}),  # in 16 bits it subtracts the maximum and takes exp in 16 bits
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks"),  # a sink takes all of an empty row
)
sdpa = ModelAttention(
    "transformers sdpa_attention_forward",
    "transformers",
    takes=frozenset({"bias", "mask", "gqa", "D!=Dv", "scale"}),
    dtypes=frozenset({"float64", "float32", *HALVES}),
    outputs=frozenset({"out", "dq", "dk", "dv", "dbias"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks"),
    module="transformers.integrations.sdpa_attention",
    function="sdpa_attention_forward",
)
