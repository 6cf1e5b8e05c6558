"""What the machine is, and what is installed on it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from gpu.target import SIMULATED

__all__ = ["rows"]

PACKAGES = ("numba", "numba-cuda", "cuda-bindings", "cupy-cuda13x", "torch", "triton", "numpy", "ml-dtypes")


def rows() -> Iterator[dict[str, Any]]:
    import torch

    yield {"what": "python", "is": platform.python_version()}
    for name in PACKAGES:
        try:
            yield {"what": name, "is": metadata.version(name)}
        except metadata.PackageNotFoundError:
            yield {"what": name, "is": "not installed"}
    if SIMULATED:
        yield {"what": "device", "is": "none: rehearsal in the executor"}
        return
    properties = torch.cuda.get_device_properties(0)
    yield {"what": "device", "is": properties.name}
    yield {"what": "compute capability", "is": f"{properties.major}.{properties.minor}"}
    yield {"what": "multiprocessors", "is": properties.multi_processor_count}
    yield {"what": "memory, GiB", "is": round(properties.total_memory / 2**30, 1)}
    yield {"what": "CUDA of torch", "is": torch.version.cuda}
    from numba import cuda

    yield {"what": "driver", "is": ".".join(map(str, cuda.driver.driver.get_version()))}
