"""In this folder the suite examines the function that rounds its weights, and knows that it does."""

from dataclasses import replace

import pytest
from tiny_attention import half_attention

from refattn.implementation import implementation
from refattn.precision import preset


@pytest.fixture(scope="session")
def attention():
    def promised(case):
        usual = preset(case.dtype, case.out_dtype)
        return replace(usual, weights="float16", source="weights are stored in float16: kernel.py")

    return implementation(
        "half_attention",
        outputs=("out", "lse"),
        supports=lambda case: "float32 alone" if case.dtype != "float32" else None,
        precision=promised,
    )(half_attention)
