"""What the compiler makes of the kernels: registers, spills, instructions; on a machine without a GPU.

`python -m gpu.sass` prints the table, `--check` compares it with `gpu/sass.json`, `--write` renews that file.
"""

from .compilation import capability, compile_kernel, driverless
from .report import Report, assemble
from .toolchain import Missing

__all__ = ["Missing", "Report", "assemble", "capability", "compile_kernel", "driverless"]
