from refattn.conformance.test_attention import test_attention  # noqa: F401
