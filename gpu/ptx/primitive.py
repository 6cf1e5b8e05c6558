"""How a primitive is declared: one function, whose decorator holds the PTX and whose body is the model.

When compiled, the decorator makes of it a `numba.cuda` intrinsic that emits the PTX inline; the body is
not used.  When simulated, the body runs: with scalars for one lane, or, for a `collective`, once for all
lanes of a warp with an array over the lanes in place of each scalar.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu.target import SIMULATED

__all__ = ["b32", "b64", "collective", "f32", "primitive"]

b32, b64, f32 = "b32", "b64", "f32"
"""Kinds of operand: registers of 32 and 64 bits that hold integers, and of 32 bits that hold a float."""

DTYPES = {b32: np.dtype(np.int32), b64: np.dtype(np.int64), f32: np.dtype(np.float32)}
Decorator = Callable[[Callable[..., Any]], Any]


def primitive(
    ptx: str, returns: str | Sequence[str] | None = None, takes: Sequence[str] = (), memory: bool = False
) -> Decorator:
    """Declares a primitive of one lane.

    `ptx` is a template: $0, $1, ... are the results, then the arguments.  `returns` is None, one kind, or a
    sequence of kinds (a tuple in the kernel).  `memory` says that it reads or writes memory, so that
    it is not moved across other accesses.
    """

    def declare(model: Callable[..., Any]) -> Any:
        _check(model, takes)
        return model if SIMULATED else _intrinsic(model, ptx, returns, takes, memory)

    return declare


def collective(
    ptx: str,
    returns: str | Sequence[str] | None = None,
    takes: Sequence[str] = (),
    memory: bool = False,
    lanes: int = 32,
) -> Decorator:
    """Declares a primitive that all lanes of a warp (128 lanes: of a warpgroup) execute together."""

    def declare(model: Callable[..., Any]) -> Any:
        _check(model, takes)
        return _gathered(model, returns, takes, lanes) if SIMULATED else _intrinsic(model, ptx, returns, takes, memory)

    return declare


def _check(model: Callable[..., Any], takes: Sequence[str]) -> None:
    names = list(inspect.signature(model).parameters)
    if len(names) != len(takes):
        raise TypeError(f"{model.__name__}({', '.join(names)}) is declared with {len(takes)} operands")


def _gathered(model: Callable[..., Any], returns: Any, takes: Sequence[str], lanes: int) -> Callable[..., Any]:
    """The model as lanes call it: their arguments are gathered, and the results handed out."""
    from gpu import simt

    dtypes = [DTYPES[kind] for kind in takes]

    @functools.wraps(model)
    def together(payloads: list[tuple[Any, ...]]) -> list[Any]:
        columns = [np.array(column, d) for column, d in zip(zip(*payloads, strict=True), dtypes, strict=True)]
        found = model(*columns)
        if returns is None:
            return [None] * lanes
        if isinstance(returns, str):
            return list(found)
        return list(zip(*found, strict=True))

    @functools.wraps(model)
    def of_a_lane(*arguments: Any) -> Any:
        return simt.collective(together, arguments, lanes)

    return of_a_lane


def _intrinsic(
    model: Callable[..., Any], ptx: str, returns: str | Sequence[str] | None, takes: Sequence[str], memory: bool
) -> Any:
    """The intrinsic that emits `ptx`."""
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    numba_types = {b32: types.int32, b64: types.int64, f32: types.float32}
    llvm_types = {b32: ir.IntType(32), b64: ir.IntType(64), f32: ir.FloatType()}
    letters = {b32: "r", b64: "l", f32: "f"}
    kinds = [] if returns is None else [returns] if isinstance(returns, str) else list(returns)
    constraints = ",".join(
        ["=" + letters[k] for k in kinds] + [letters[k] for k in takes] + (["~{memory}"] if memory else [])
    )
    if returns is None:
        result, llvm_result = types.none, ir.VoidType()
    elif isinstance(returns, str):
        result, llvm_result = numba_types[returns], llvm_types[returns]
    else:
        result = types.BaseTuple.from_types([numba_types[k] for k in kinds])
        llvm_result = ir.LiteralStructType([llvm_types[k] for k in kinds])
    wanted = [numba_types[k] for k in takes]
    function_type = ir.FunctionType(llvm_result, [llvm_types[k] for k in takes])

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        cast = [context.cast(builder, v, f, t) for v, f, t in zip(values, signature.args, wanted, strict=True)]
        code = ir.InlineAsm(function_type, ptx, constraints, side_effect=memory)
        found = builder.call(code, cast, attrs=("convergent",))  # or LLVM may sink it into a branch
        if returns is None:
            return context.get_dummy_value()
        if isinstance(returns, str):
            return found
        return context.make_tuple(builder, result, [builder.extract_value(found, i) for i in range(len(kinds))])

    def typed(typing_context: Any, *arguments: Any) -> Any:
        return result(*wanted), emit

    parameters = inspect.signature(model).parameters.values()
    first = inspect.Parameter("typing_context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    typed.__signature__ = inspect.Signature([first, *bare])  # type: ignore[attr-defined]
    typed.__name__, typed.__doc__ = model.__name__, model.__doc__
    made = intrinsic(typed)
    made.takes, made.returns = tuple(takes), returns
    return made
