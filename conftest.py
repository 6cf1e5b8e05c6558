"""Settings that all tests share: drawn examples are the same in every run, and GPU kernels run in the executor."""

import contextlib
import os

pytest_plugins = ["tests.alone"]
collect_ignore = ["tests/example_project"]  # another project: tests/test_example_project.py installs and runs it
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # before anything imports numba; nothing else in it looks at this

with contextlib.suppress(ImportError):  # only the property tests need it
    from hypothesis import settings

    settings.register_profile("refattn", deadline=None, derandomize=True, database=None, print_blob=True)
    settings.load_profile("refattn")
