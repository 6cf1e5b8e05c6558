"""Arrays of jax, MLX, CuPy and others at the door: taken as they are, handed over as declared."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np  # noqa: E402
import pytest  # noqa: E402

from refattn.calling import Local, call, describe  # noqa: E402
from refattn.case import Case  # noqa: E402
from refattn.conform import examine  # noqa: E402
from refattn.dtypes import FORMATS  # noqa: E402
from refattn.exchange import KINDS, as_numpy, hand_over, is_array  # noqa: E402
from refattn.implementation import implementation  # noqa: E402
from refattn.inputs import make  # noqa: E402
from refattn.judging import judge_arrays  # noqa: E402
from refattn.masks import Causal  # noqa: E402
from refattn.oracle import attention  # noqa: E402

BACK_AND_FORTH = {
    "numpy": tuple(FORMATS),
    "torch": tuple(FORMATS),
    "jax": tuple(name for name in FORMATS if name != "float64"),
    "mlx": ("float64", "float32", "float16", "bfloat16"),
    "cupy": tuple(FORMATS),
}
OTHERS = ("bool", "int8", "uint8", "int32")


class OnDevice:
    """What CuPy's arrays have: memory that NumPy cannot read, and get()."""

    def __init__(self, x: Any) -> None:
        self._x, self.dtype, self.shape = np.array(x), x.dtype, x.shape

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("this memory is not on the CPU")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def get(self) -> Any:
        return self._x


class OnlyDlpack:
    """What the standard of the array API asks for, and no more."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self._x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()


@pytest.fixture
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The library, imported; in CuPy's stead a module that knows asarray."""
    kind: str = request.param
    if kind == "cupy":
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=OnDevice))
    elif kind != "numpy":
        pytest.importorskip({"mlx": "mlx.core"}.get(kind, kind), reason=f"{kind} is not installed")
    return kind


def random_bits(name: str) -> Any:
    dtype = np.dtype(bool) if name == "bool" else FORMATS[name].dtype if name in FORMATS else np.dtype(name)
    bits = np.random.default_rng(5).integers(0, 2 if name == "bool" else 256, 24 * dtype.itemsize, dtype=np.uint8)
    return bits.view(dtype).reshape(2, 3, 4)


@pytest.mark.parametrize("library", KINDS, indirect=True)
def test_every_bit_comes_back(library: str) -> None:
    for name in (*BACK_AND_FORTH[library], *OTHERS):
        x = random_bits(name)
        there = hand_over(x, library)
        assert is_array(there), name
        back = as_numpy(there)
        assert back.dtype == x.dtype and back.shape == x.shape and back.tobytes() == x.tobytes(), name


@pytest.mark.parametrize("library", KINDS, indirect=True)
def test_views_keep_their_numbers(library: str) -> None:
    """Not contiguous, transposed, empty, of no dimension."""
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (x[:, :2], x[::2], x.T, x[:0], x[0, 0, ...]):
        back = as_numpy(hand_over(view, library))
        assert back.shape == view.shape and np.array_equal(back, view)


@pytest.mark.parametrize("library", ["jax", "mlx"], indirect=True)
def test_dtypes_that_a_library_lacks_are_refused_by_name(library: str) -> None:
    lacking = {"jax": "float64", "mlx": "float8_e5m2"}[library]

    @implementation("never called", arrays=library)  # type: ignore[arg-type]
    def candidate(q: Any, k: Any, v: Any) -> Any:
        raise AssertionError

    answer = call(candidate, make(Case("x", "lacking", dtype=lacking)))
    assert answer.kind == "unsupported" and answer.text.startswith(f"{lacking}: ")


@pytest.mark.parametrize("library", KINDS, indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_implementation_gets_and_returns_arrays_of_its_library(library: str, dtype: str) -> None:
    case = Case("x", "of a library", B=1, H=4, Hkv=2, Lq=3, Lk=5, dtype=dtype, family="peaked", mask=Causal("top_left"))
    seen: set[type] = set()

    def right(q: Any, k: Any, v: Any, mask: Any) -> Any:
        seen.update(map(type, (q, k, v, mask)))
        found = attention(*(as_numpy(x).astype(np.float64) for x in (q, k, v)), mask=as_numpy(mask))
        return hand_over(found.out.astype(as_numpy(q).dtype), library)

    def wrong(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return right(q, k, v, hand_over(np.ones_like(as_numpy(mask)), library))

    def verdict(function: Any) -> str:
        return examine(Local(implementation("x", arrays=library)(function)), case).status  # type: ignore[arg-type]

    assert verdict(right) == "passed" and len(seen) == 1 and (np.ndarray in seen) == (library == "numpy")
    assert verdict(wrong) == "failed"


@pytest.mark.parametrize("library", KINDS, indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays_are_judged_as_they_are(library: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, 4, 8)).astype(FORMATS[dtype].dtype) for _ in range(3))
    out = attention(*(x.astype(np.float64) for x in (q, k, v))).out.astype(q.dtype)
    q, k, v, out, wrong = (hand_over(x, library) for x in (q, k, v, out, out * 2))
    assert judge_arrays(q, k, v, out=out).status == "passed"
    assert judge_arrays(q, k, v, out=wrong).status == "failed"


def test_whatever_has_dlpack_alone() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert is_array(OnlyDlpack(x)) and np.shares_memory(as_numpy(OnlyDlpack(x)), x)


@pytest.mark.parametrize("library", ["tensorflow", "tinygrad"])
def test_other_libraries(library: str) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    there = module.constant(x) if library == "tensorflow" else module.Tensor(x)
    assert is_array(there) and np.array_equal(as_numpy(there), x)


@pytest.mark.parametrize("x", [[1.0], 1.0, None, "text", (1, 2)], ids=repr)
def test_what_is_no_array(x: Any) -> None:
    assert not is_array(x)


def test_an_unknown_kind_is_refused() -> None:
    class Strange:
        name, version, arrays, outputs = "strange", "", "fortran", frozenset({"out"})

        def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
            return {}

    with pytest.raises(TypeError, match="arrays='fortran' must be one of numpy, torch, jax, mlx, cupy"):
        describe(Strange())  # type: ignore[arg-type]
