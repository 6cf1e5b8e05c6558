"""The door: what an implementation is, and how `module:callable` becomes one.

An implementation is called with a case and the arrays it is handed, and returns named arrays:

    @implementation(name="mine", conventions=Conventions(masked_nan_v="leaks"))
    def attention(case, given):
        q, k, v = given["q"], given["k"], given["v"]
        mask = case.visibility.tile()
        ...
        return {"out": out, "lse": lse}

`given` holds q k v, and where the case has them bias sinks keep dout dlse, and what its storage,
rotation and quantisation bring (`refattn.memory.extra_names`).  A plain function
`f(q, k, v, *, mask=None, scale=None, ...)` will do as well: it is called with those options of `PLAIN` that
the case has.  A case with an option that it does not take, or without one that it needs, is counted as
unsupported.  It returns out, or (out, lse), or a mapping; None there is an output that is not returned.
`docs/FEATURES.md` has the shapes.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from .case import NAMES, Cache, Case, Packed, Paged
from .exchange import hand_over
from .memory import extra_names
from .precision import Conventions, Precision, preset
from .score_mods import SCORE_MODS

__all__ = ["DEFAULT", "PLAIN", "Function", "Implementation", "implementation", "load", "plain_options", "wrap"]

DEFAULT = "refattn.streaming:implementation"
PLAIN = tuple(
    "mask bias scale softcap sinks score_mod dropout keep cos sin interleaved q_scale k_scale v_scale kind out_dtype "
    "cu_seqlens_q cu_seqlens_k seqused_q seqused_k block_table k_cache v_cache cache_lens".split()
)
"""the options that a plain function may take"""
Arrays = Literal["numpy", "torch", "jax", "mlx", "cupy"]
USUAL = Conventions()


@runtime_checkable
class Implementation(Protocol):
    """What the suite asks of an implementation."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def arrays(self) -> Arrays:
        """The kind of arrays that it is handed and returns."""

    @property
    def conventions(self) -> Conventions: ...

    @property
    def outputs(self) -> frozenset[str]:
        """What it always returns when a case wants it; other wanted names are judged when returned."""

    def supports(self, case: Case) -> str | None:
        """None, or the reason why it cannot do the case; sees no arrays."""

    def precision(self, case: Case) -> Precision:
        """Its contract for the case."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The named outputs; raises `Unsupported` to refuse."""


def _preset(case: Case) -> Precision:
    return preset(case.dtype, case.out_dtype)


def _supports_all(case: Case) -> str | None:
    return None


@dataclass(frozen=True)
class Function:
    """An implementation made of a function and what it declares; see the module's docstring."""

    function: Callable[..., Any]
    name: str
    version: str = ""
    arrays: Arrays = "numpy"
    conventions: Conventions = Conventions()
    outputs: frozenset[str] = frozenset({"out"})
    supports_case: Callable[[Case], str | None] = field(default=_supports_all)
    precision_of: Callable[[Case], Precision] = field(default=_preset)

    def supports(self, case: Case) -> str | None:
        if self.outputs.isdisjoint(case.want):
            return f"declares no {' '.join(sorted(case.want))}; see @implementation(outputs=...)"
        reason = self.supports_case(case)
        if reason is None and not self._takes_case:
            known, options = _parameters(self.function), plain_options(case)
            lacking = [o for o in options if known is not None and o not in known]
            needed = [o for o in _required(self.function) if o not in options]
            reason = f"takes no {lacking[0]}" if lacking else f"needs {needed[0]}" if needed else None
        return reason

    def precision(self, case: Case) -> Precision:
        return self.precision_of(case)

    @property
    def _takes_case(self) -> bool:
        known = _parameters(self.function)
        return known is not None and known[:2] == ["case", "given"]

    @property
    def never_given(self) -> tuple[str, ...]:
        """What a plain function takes and no case has, such as is_causal: it keeps its default."""
        known = None if self._takes_case else _parameters(self.function)
        return tuple(name for name in (known or ())[3:] if name not in PLAIN)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._takes_case:
            answer = self.function(case, given)
        else:
            options = {name: given[name] if name in given else value for name, value in plain_options(case).items()}
            if "mask" in options:
                options["mask"] = hand_over(options["mask"], self.arrays)
            answer = self.function(given["q"], given["k"], given["v"], **options)
        if isinstance(answer, Mapping):
            return answer
        if isinstance(answer, tuple) and len(answer) == 2:
            return {"out": answer[0], "lse": answer[1]}
        return {"out": answer}


def plain_options(case: Case) -> dict[str, Any]:
    """The keyword arguments of a plain function for the case; the arrays among them are None."""
    options: dict[str, Any] = {}
    lengths = (case.q_lens, case.k_lens) != (None, None) and not isinstance(case.storage, (Packed, Paged, Cache))
    if case.mask is not None or lengths:  # those storages say themselves how long each sequence is
        options["mask"] = case.visibility.tile().copy()
    if case.bias is not None:
        options["bias"] = None
    if case.scale is not None:
        options["scale"] = case.scale
    if case.softcap is not None:
        options["softcap"] = case.softcap
    if case.sinks is not None:
        options["sinks"] = None
    if case.score_mod is not None:
        options["score_mod"] = SCORE_MODS[case.score_mod]
    if case.dropout is not None:
        options |= {"dropout": case.dropout, "keep": None}
    if case.rotary is not None:
        options["interleaved"] = case.rotary.interleaved
    if case.quant is not None:
        options["kind"] = case.quant.kind
    options |= dict.fromkeys(extra_names(case))
    if case.out_dtype != case.dtype or (case.quant is not None and case.quant.of == "qkv"):
        options["out_dtype"] = case.out_dtype
    return options


def implementation(
    name: str | None = None,
    *,
    version: str = "",
    arrays: Arrays = "numpy",
    conventions: Conventions = USUAL,
    outputs: Any = ("out",),
    supports: Callable[[Case], str | None] = _supports_all,
    precision: Callable[[Case], Precision] = _preset,
) -> Callable[[Callable[..., Any]], Function]:
    """Decorator that declares what a function is; each argument is a field of `Implementation`.

    >>> @implementation(name="mean of v")
    ... def mean(q, k, v): return v.mean(2, keepdims=True).repeat(q.shape[2], 2)
    >>> mean.supports(Case("x", "softcap", softcap=1.0))
    'takes no softcap'
    """

    if name is not None and not isinstance(name, str):
        raise TypeError(f"@implementation must be called: @implementation() above {getattr(name, '__name__', name)!r}")
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    unknown = set(names) - set(NAMES)
    if unknown or not names:
        raise ValueError(f"outputs={outputs!r} must hold some of {', '.join(NAMES)}")
    for what, given in (("supports", supports), ("precision", precision)):
        if not callable(given):
            raise TypeError(f"{what}={given!r} must be a function of the case")

    def decorate(function: Callable[..., Any]) -> Function:
        return Function(
            function,
            name or str(getattr(function, "__qualname__", type(function).__name__)),
            version,
            arrays,
            conventions,
            frozenset(names),
            supports,
            precision,
        )

    return decorate


def load(spec: str) -> Implementation:
    """The implementation that `spec` names.

    `module:callable` imports it (dots reach into attributes); a bare name is one of ours,
    `torch` for `refattn.adapters.torch:default`, `torch-math` for its `math`.
    """
    module_name, _, attribute = spec.partition(":")
    if not attribute:
        library, _, variant = spec.partition("-")
        module_name, attribute = f"refattn.adapters.{library}", variant or "default"
        if spec == "refattn":
            module_name, _, attribute = DEFAULT.partition(":")
        elif not library.isidentifier() or importlib.util.find_spec(module_name) is None:
            raise ValueError(f"{spec!r} is no implementation; use module:callable, or a name such as torch or refattn")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{spec!r}: {module_name} has no {attribute}")
        found = getattr(found, part)
    return wrap(found, spec)


def wrap(found: Any, name: str) -> Implementation:
    """`found` itself if it is an implementation, or the plain function made one."""
    if isinstance(found, Implementation):
        return found
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}, which must be an implementation or a callable")
    return Function(found, name)


def _parameters(function: Callable[..., Any]) -> list[str] | None:
    """Names of the parameters; None if it takes any, or if they cannot be known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]


def _required(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters, after the first three, that have no default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters[3:] if p.default is p.empty and p.kind not in kinds]
