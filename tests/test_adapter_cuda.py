"""flash-attn, FlashInfer and xformers without a GPU: stand-ins that check the call and answer by the oracle.

A stand-in takes what the library's documentation says that it takes, of the shapes that it says, keeps it in `calls`,
and answers with the mask that the documentation gives to these arguments.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from refattn import attention  # noqa: E402
from refattn.adapters import flash_attn, flashinfer, xformers  # noqa: E402
from refattn.adapters.adapter import NotInstalled  # noqa: E402
from refattn.case import BiasSpec, Cache, Packed, Paged  # noqa: E402
from refattn.exchange import from_torch, to_torch  # noqa: E402
from refattn.masks import Causal, Window  # noqa: E402
from tests.adapter_checks import BOTTOM, GRAD, TOP, judged, small, words  # noqa: E402

FA, FI, XF = (replace(library.default, device="cpu") for library in (flash_attn, flashinfer, xformers))
HALF: dict[str, Any] = {"dtype": "float16", "Hkv": 2}
D64 = HALF | {"D": 64, "Dv": 64}


def solve(q: Any, k: Any, v: Any, seen: Any = None, scale: float | None = None, **options: Any) -> tuple[Any, Any]:
    """out and lse of (B, L, heads, D) tensors, by the oracle."""
    arrays = (from_torch(x).swapaxes(1, 2) for x in (q, k, v))
    mask = None if seen is None else np.broadcast_to(seen, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    found = attention(*arrays, mask=mask, scale=scale, **options)
    out = to_torch(found.out.swapaxes(1, 2).astype(from_torch(q).dtype))
    return out, torch.from_numpy(found.lse.astype(np.float32))


def windowed(lq: int, lk: int, causal: bool, window: tuple[int, int]) -> Any:
    """As flash_attn_interface.py has it: inclusive, aligned bottom right, -1 for no limit, causal is (-1, 0)."""
    left, right = (-1, 0) if causal else window
    i, j = np.arange(lq)[:, None] + lk - lq, np.arange(lk)
    return ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))


class FlashAttn:
    """flash_attn 2.7."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def flash_attn_func(
        self, q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
        deterministic: bool = False, return_attn_probs: bool = False,
    ) -> Any:  # fmt: skip
        self.calls.append(("func", {"causal": causal, "window": window_size, "softcap": softcap}))
        seen = windowed(q.shape[1], k.shape[1], causal, window_size)
        out, lse = solve(q, k, v, seen, softmax_scale, softcap=softcap or None)
        if q.requires_grad:  # gradients by torch, of the same function
            group = q.shape[2] // k.shape[2]
            keys, values = (x.transpose(1, 2).double().repeat_interleave(group, 1) for x in (k, v))
            s = q.transpose(1, 2).double() @ keys.mT * (softmax_scale or q.shape[-1] ** -0.5)
            s = s.masked_fill(~torch.from_numpy(seen), -torch.inf)
            out = (s.softmax(-1) @ values).transpose(1, 2).to(q.dtype)
        return (out, lse, None) if return_attn_probs else out

    def flash_attn_varlen_func(
        self, q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
        dropout_p: float = 0.0, **options: Any,
    ) -> Any:  # fmt: skip
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        out, lse = torch.zeros_like(q), torch.zeros(q.shape[1], q.shape[0])
        spans = [(int(c[b]), int(c[b + 1])) for b in range(len(cu_seqlens_q) - 1) for c in (cu_seqlens_q, cu_seqlens_k)]
        for (q0, q1), (k0, k1) in zip(spans[::2], spans[1::2], strict=True):
            assert q1 - q0 <= max_seqlen_q and k1 - k0 <= max_seqlen_k
            if q1 > q0:
                o, s, _ = self.flash_attn_func(q[None, q0:q1], k[None, k0:k1], v[None, k0:k1], **options)
                out[q0:q1], lse[:, q0:q1] = o[0], s[0]
        self.calls.append(("varlen", {}))
        return out, lse, None

    def flash_attn_with_kvcache(
        self, q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, *, cache_seqlens: Any,
        block_table: Any = None, softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, return_softmax_lse: bool = False,
    ) -> Any:  # fmt: skip
        assert cache_seqlens.dtype == torch.int32 and return_softmax_lse
        self.calls.append(("kvcache", {"causal": causal, "window": window_size}))
        rows = []
        for b, n in enumerate(cache_seqlens.tolist()):
            if k is not None:
                k_cache[b, n : n + k.shape[1]], v_cache[b, n : n + k.shape[1]] = k[b], v[b]
                n += k.shape[1]
            if block_table is None:
                keys, values = k_cache[b], v_cache[b]
            else:
                keys, values = (cache[block_table[b].long()].flatten(0, 1) for cache in (k_cache, v_cache))
            seen = windowed(q.shape[1], n, causal, window_size)
            row = q[b : b + 1], keys[None, :n], values[None, :n]
            rows.append(solve(*row, seen, softmax_scale, softcap=softcap or None))
        return torch.cat([out for out, _ in rows]), torch.cat([lse for _, lse in rows])


class FlashInfer:
    """flashinfer 0.6: (L, heads, D), lse (L, heads) in base 2."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def single_prefill_with_kv_cache(
        self, q: Any, k: Any, v: Any, *, custom_mask: Any = None, causal: bool = False, sm_scale: float | None = None,
        window_left: int = -1, logits_soft_cap: float | None = None, return_lse: bool = False,
    ) -> Any:  # fmt: skip
        assert return_lse and q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
        self.calls.append({"custom": custom_mask is not None, "causal": causal, "window_left": window_left})
        if custom_mask is None:
            seen = windowed(len(q), len(k), False, (window_left, 0 if causal else -1))
        else:
            assert custom_mask.shape == (len(q), len(k)) and custom_mask.dtype == torch.bool
            seen = custom_mask.numpy()
        out, lse = solve(q[None], k[None], v[None], seen, sm_scale, softcap=logits_soft_cap)
        return out[0], lse[0].T / np.log(2.0)

    def BatchPrefillWithPagedKVCacheWrapper(self, workspace: Any, kv_layout: str = "NHD") -> Any:
        assert kv_layout == "NHD" and workspace.dtype == torch.uint8
        plan: dict[str, Any] = {}

        def note(
            qo_indptr: Any, paged_kv_indptr: Any, paged_kv_indices: Any, paged_kv_last_page_len: Any, num_qo_heads: int,
            num_kv_heads: int, head_dim: int, page_size: int, **options: Any,
        ) -> None:  # fmt: skip
            plan.update(q=qo_indptr, p=paged_kv_indptr, i=paged_kv_indices, last=paged_kv_last_page_len, size=page_size)
            plan["options"] = {n: x for n, x in options.items() if n != "q_data_type"}
            assert all(plan[n].dtype == torch.int32 for n in ("q", "p", "i", "last"))

        def run(q: Any, cache: tuple[Any, Any], return_lse: bool) -> Any:
            found = []
            for b in range(len(plan["q"]) - 1):
                pages = plan["i"][plan["p"][b] : plan["p"][b + 1]].long()
                n = (len(pages) - 1) * plan["size"] + int(plan["last"][b])
                k, v = (x[pages].flatten(0, 1)[:n].contiguous() for x in cache)
                rows = q[plan["q"][b] : plan["q"][b + 1]]
                found.append(self.single_prefill_with_kv_cache(rows, k, v, return_lse=True, **plan["options"]))
            return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found])

        return SimpleNamespace(plan=note, run=run)


class Fmha:
    """xformers.ops.fmha 0.0.35: (B, L, heads, D) or (B, L, groups, heads, D)."""

    attn_bias = SimpleNamespace(
        LowerTriangularMask=lambda: TOP,
        LowerTriangularFromBottomRightMask=lambda: BOTTOM,
        LocalAttentionFromBottomRightMask=lambda window_left, window_right: Window(
            window_left, window_right, "bottom_right"
        ),
    )

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def memory_efficient_attention_forward_requires_grad(
        self, query: Any, key: Any, value: Any, attn_bias: Any = None, p: float = 0.0, scale: float | None = None
    ) -> Any:
        self.calls.append(attn_bias)
        groups = query.dim() == 5
        if groups:
            assert query.shape[2:4] == key.shape[2:4] and key.stride(3) == 0
            query, key, value = (x.flatten(2, 3) for x in (query, key, value))
        seen, options = None, {}
        if isinstance(attn_bias, (Causal, Window)):
            seen = attn_bias.dense(1, 1, query.shape[1], key.shape[1])
        elif attn_bias is not None:
            assert attn_bias.stride(-2) % 8 == 0 and attn_bias.dtype == query.dtype
            bias = attn_bias.flatten(1, 2) if groups else attn_bias
            options["bias"] = from_torch(bias).astype(np.float64)
        out, lse = solve(query, key, value, seen, scale, **options)
        return (out.unflatten(2, (-1, 2)), lse.unflatten(1, (-1, 2))) if groups else (out, lse)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    fmha = Fmha()
    found = SimpleNamespace(fa=FlashAttn(), fi=FlashInfer(), xf=fmha)
    for name, module in (("flash_attn", found.fa), ("flashinfer", found.fi), ("xformers.ops.fmha", fmha)):
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.mark.parametrize(
    ("fields", "call"),
    [
        ({"mask": BOTTOM}, ("func", {"causal": True, "window": (-1, -1), "softcap": 0.0})),
        ({"mask": Window(2, 0, "bottom_right"), "softcap": 2.0},
         ("func", {"causal": False, "window": (2, 0), "softcap": 2.0})),
        ({"mask": Window(None, 1, "bottom_right"), "scale": 0.3},
         ("func", {"causal": False, "window": (-1, 1), "softcap": 0.0})),
        ({"mask": BOTTOM, "want": GRAD | {"out"}}, ("func", {"causal": True, "window": (-1, -1), "softcap": 0.0})),
        ({"q_lens": (5, 2), "k_lens": (9, 3), "storage": Packed(), "mask": BOTTOM}, ("varlen", {})),
        ({"k_lens": (600, 300), "Lk": 600, "storage": Paged(256)}, ("kvcache", {"causal": False, "window": (-1, -1)})),
        ({"k_lens": (9, 6), "storage": Cache(), "mask": BOTTOM, "want": frozenset({"out", "k_cache", "v_cache"})},
         ("kvcache", {"causal": True, "window": (-1, -1)})),
    ],
    ids=words,
)  # fmt: skip
def test_flash_attn(stand_in: Any, fields: dict[str, Any], call: Any) -> None:
    assert judged(FA, small(**HALF | fields)) == "passed"
    assert stand_in.fa.calls[-1] == call


def test_flash_attn_empty_rows_and_told_wrongly(stand_in: Any) -> None:
    assert judged(FA, small(**HALF, mask=BOTTOM, Lq=9, Lk=5)) in ("passed", "acceptable")
    assert judged(FA, small(**HALF, mask=BOTTOM), mask=None) == "failed"
    assert judged(FA, small(**HALF, mask=Window(2, 0, "bottom_right")), mask=Window(3, 0, "bottom_right")) == "failed"


@pytest.mark.parametrize(
    ("fields", "call"),
    [
        ({"mask": BOTTOM, "softcap": 2.0}, {"custom": False, "causal": True, "window_left": -1}),
        ({"mask": Window(2, 0, "bottom_right"), "k_lens": (9, 5)}, {"custom": False, "causal": True, "window_left": 2}),
        ({"mask": TOP, "q_lens": (5, 2)}, {"custom": True, "causal": False, "window_left": -1}),
        ({"mask": BOTTOM, "k_lens": (9, 6), "storage": Paged(4)}, {"custom": False, "causal": True, "window_left": -1}),
    ],
    ids=words,
)
def test_flashinfer(stand_in: Any, fields: dict[str, Any], call: Any) -> None:
    assert judged(FI, small(**D64 | fields)) in ("passed", "acceptable")
    assert stand_in.fi.calls[-1] == call
    assert judged(FI, small(**D64 | fields), mask=None) == "failed"


@pytest.mark.parametrize(
    "fields",
    [{"mask": TOP}, {"mask": BOTTOM}, {"mask": Window(2, 1, "bottom_right")}, {"k_lens": (9, 3)}, {}],
    ids=words,
)
@pytest.mark.parametrize("heads", [2, 4])
def test_xformers(stand_in: Any, fields: dict[str, Any], heads: int) -> None:
    case = small(**fields, dtype="float16", Hkv=heads)
    assert judged(XF, case) == "passed"
    own = stand_in.xf.calls[-1]
    assert own == case.mask if case.k_lens is None else own.shape[-1] == case.Lk
    assert judged(XF, case, mask=Window(1, 0, "top_left")) == "failed"


def test_xformers_bias(stand_in: Any) -> None:
    case = small(bias=BiasSpec("HQK", "float16"), dtype="float16", mask=BOTTOM)
    assert judged(XF, case) == "passed" and judged(XF, case, mask=TOP) == "failed"


@pytest.mark.parametrize(
    ("adapter", "fields", "reason"),
    [
        (FA, {"mask": TOP}, "causal"),
        (FA, {"k_lens": (9, 3)}, "lengths"),
        (FA, {"storage": Paged(16)}, "page_size"),
        (FA, {"storage": Packed(2)}, "seqused"),
        (FA, {"dtype": "float32"}, "float32"),
        (FA, {"sinks": "normal"}, "sinks"),
        (FI, {"D": 48}, "D!=Dv"),
        (FI, {"D": 64, "Dv": 64, "k_lens": (9, 0)}, "rows that see nothing"),
        (XF, {"softcap": 1.0}, "softcap"),
        (XF, {"Hkv": 2, "want": GRAD}, "gradients of groups"),
    ],
)
def test_refused(adapter: Any, fields: dict[str, Any], reason: str) -> None:
    assert adapter.supports(small(**{"dtype": "float16"} | fields)) == reason


@pytest.mark.parametrize("adapter", [flash_attn.default, flashinfer.default, xformers.default], ids=words)
def test_says_what_it_needs(adapter: Any) -> None:
    assert adapter.needs == "a CUDA GPU"
    if not torch.cuda.is_available():
        assert adapter.supports(small(dtype="float16", D=64, Dv=64)) == "needs a CUDA GPU"
    try:
        assert adapter.version
    except NotInstalled as error:
        assert "needs a CUDA GPU: python -m pip install" in str(error)
