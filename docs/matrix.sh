#!/usr/bin/env bash
# Makes the matrix: runs every public library that is installed here through the suite, and writes the page and the table.
# A run that was stopped goes on; OUT and RUNS say where to, what follows selects cases:
#   OUT=/tmp RUNS=/tmp/runs docs/matrix.sh --chapter basics
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-docs}
refattn matrix \
  torch torch-math torch-flash torch-mha torch-flex jax jax-flash onnx onnx-opset24 onnxruntime onnxruntime-mha onnxruntime-gqa \
  openvino tensorflow keras mlx tinygrad triton transformers transformers-sdpa transformers-gemma2 transformers-gpt_oss \
  flash_attn flashinfer xformers refattn \
  --runs "${RUNS:-runs}" --jobs "${JOBS:-1}" --html "$out/matrix.html" --markdown "$out/MATRIX.md" "$@"
