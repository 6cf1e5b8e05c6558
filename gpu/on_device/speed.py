"""How fast the kernels are, beside torch's, in one run on one device.

TFLOP/s count 4 B H Lq Lk D for a forward and 2.5 times that for a backward, half of it where causal: the convention of
the FlashAttention papers.  Times are medians of CUDA events, kernels and peers in turns.  As in those papers 16,384
tokens are shared out to batch entries, and heads are 2048 / D.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from gpu.target import SIMULATED
from refattn.masks import Causal

__all__ = ["backward", "decode", "every_shape", "forward"]

TOKENS, WIDTH = 16384, 2048
Timed = dict[str, Callable[[], Any]]


def milliseconds(functions: Timed, budget: float = 0.12) -> dict[str, float]:
    """The median time of each function, called in turns, about `budget` seconds each."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once(function: Callable[[], Any]) -> float:
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    first = {}
    for name, function in functions.items():
        once(function)  # compiles
        first[name] = min(once(function) for _ in range(3))
    rounds = max(5, min(100, int(budget * 1e3 / max(first.values()))))
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(once(function))
    return {name: statistics.median(t) for name, t in times.items()}


def peers(q: Any, k: Any, v: Any, causal: bool) -> Timed:
    """torch's own attention by backend; those that refuse the problem are left out."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def of(backend: Any) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
                )

        return call

    found = {}
    backends = {"torch flash": SDPBackend.FLASH_ATTENTION, "torch cuDNN": SDPBackend.CUDNN_ATTENTION}
    for name, backend in backends.items():
        try:
            of(backend)()
            found[name] = of(backend)
        except RuntimeError:
            continue
    return found


def drawn(B: int, H: int, N: int, D: int, dtype: str, grad: bool = False) -> list[Any]:
    import torch

    kind = getattr(torch, dtype)
    return [torch.randn(B, H, N, D, device="cuda", dtype=kind, requires_grad=grad) for _ in range(3)]


def row(what: dict[str, Any], times: dict[str, float], flop: float, ours: tuple[str, ...]) -> dict[str, Any]:
    """TFLOP/s of each, and our best as a ratio to torch's flash backend."""
    rates = {name: round(flop / ms / 1e9, 1) for name, ms in times.items()}
    best = max((rates[n] for n in ours if n in rates), default=0.0)
    ratio = round(best / rates["torch flash"], 2) if "torch flash" in rates else ""
    return what | rates | {"ratio to torch flash": ratio}


def forward_row(N: int, D: int, causal: bool, dtype: str, kernels: tuple[str, ...]) -> dict[str, Any]:
    import torch

    import gpu

    B, H = max(1, TOKENS // N), WIDTH // D
    q, k, v = drawn(B, H, N, D, dtype)
    mask = Causal("bottom_right") if causal else None
    functions: Timed = {n: (lambda n=n: gpu.attention(q, k, v, mask=mask, kernel=n)) for n in kernels}
    with torch.no_grad():
        times = milliseconds(functions | peers(q, k, v, causal))
    flop = 4 * B * H * N * N * D * (0.5 if causal else 1)
    return row({"N": N, "D": D, "causal": causal, "dtype": dtype}, times, flop, kernels)


def forward() -> Iterator[dict[str, Any]]:
    """The shapes of the goal: at least torch's flash backend, and 1.3 times that by wgmma."""
    for D in () if SIMULATED else (64, 128):
        for N in (4096, 16384):
            for causal in (True, False):
                yield forward_row(N, D, causal, "bfloat16", ("tensor_core", "wgmma"))


def every_shape() -> Iterator[dict[str, Any]]:
    """The other lengths and the other dtype."""
    for N in () if SIMULATED else (512, 1024, 2048, 8192):
        for D in (64, 128):
            for causal in (True, False):
                yield forward_row(N, D, causal, "bfloat16", ("tensor_core", "wgmma"))
    for D in () if SIMULATED else (64, 128):
        yield forward_row(8192, D, True, "float16", ("tensor_core", "wgmma"))


def backward() -> Iterator[dict[str, Any]]:
    """The goal is 0.7 times torch's flash backend."""
    import torch

    import gpu

    shapes = ((64, 4096, True), (128, 4096, True), (128, 16384, True), (64, 4096, False))
    for D, N, causal in () if SIMULATED else shapes:
        B, H = max(1, TOKENS // N), WIDTH // D
        q, k, v = drawn(B, H, N, D, "bfloat16", grad=True)
        mask = Causal("bottom_right") if causal else None
        with torch.no_grad():
            out, lse = gpu.attention(q.detach(), k.detach(), v.detach(), mask=mask)
        dout = torch.randn_like(out)
        x = [t.detach() for t in (q, k, v)]
        functions: Timed = {
            "backward": lambda x=x, out=out, lse=lse, dout=dout, mask=mask: gpu.attention_grad(
                dout, *x, out, lse, mask=mask
            )
        }
        for name, call in peers(q, k, v, causal).items():
            y = call()
            functions[name] = lambda y=y, q=q, k=k, v=v, dout=dout: torch.autograd.grad(
                y, (q, k, v), dout, retain_graph=True
            )
        flop = 2.5 * 4 * B * H * N * N * D * (0.5 if causal else 1)
        yield row({"N": N, "D": D, "causal": causal}, milliseconds(functions), flop, ("backward",))


def decode() -> Iterator[dict[str, Any]]:
    """One query, many keys: GB/s of keys and values."""
    import torch

    import gpu

    for B, Lk in () if SIMULATED else ((1, 131072), (16, 8192)):
        H, Hkv, D = 32, 8, 128
        q = torch.randn(B, H, 1, D, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(B, Hkv, Lk, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        functions: Timed = {"decode": lambda q=q, k=k, v=v: gpu.attention(q, k, v, kernel="decode")}
        with torch.no_grad():
            times = milliseconds(functions | peers(q, k, v, False))
        moved = 2 * k.numel() * 2
        rates = {name: round(moved / ms / 1e6) for name, ms in times.items()}
        ratio = round(rates["decode"] / rates["torch flash"], 2) if "torch flash" in rates else ""
        yield {"B": B, "Lk": Lk, **{f"{n}, GB/s": r for n, r in rates.items()}, "ratio to torch flash": ratio}
