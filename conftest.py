"""Settings that all tests share: drawn examples are the same in every run."""

import contextlib

with contextlib.suppress(ImportError):  # only the property tests need it
    from hypothesis import settings

    settings.register_profile("refattn", deadline=None, derandomize=True, database=None, print_blob=True)
    settings.load_profile("refattn")
