"""The suite of refattn, on what the ini key `attention` names."""

from refattn.conformance.test_attention import test_attention  # noqa: F401
