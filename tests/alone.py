"""Tests of adapters whose libraries cannot share a process: each file of them in a pytest of its own.

torch.compile aborts where TensorFlow is loaded.  Where both are installed, a file test_adapter_*.py that is run among
others is one test here, which passes if the file does; a run of that file alone shows its tests as usual.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

CLASH = all(map(find_spec, ("torch", "tensorflow")))


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    config = parent.config
    wanted = {(config.invocation_params.dir / name.split("::")[0]).resolve() for name in config.args}
    if CLASH and module_path.name.startswith("test_adapter_") and wanted != {module_path.resolve()}:
        return Alone.from_parent(parent, path=module_path)
    return None


class Alone(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield Run.from_parent(self, name="in_a_process_of_its_own")


class Run(pytest.Item):
    def runtest(self) -> None:
        command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-rs", "-p", "no:cacheprovider", str(self.path)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.config.rootpath, env=environment,
            text=True, errors="replace",
        )  # fmt: skip
        if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
            pytest.skip(next((line for line in done.stdout.splitlines() if line.startswith("SKIPPED")), "no tests"))
        if done.returncode:
            pytest.fail(f"ended with {done.returncode}\n{done.stdout}", pytrace=False)
        self.add_report_section("call", "stdout", done.stdout)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name
