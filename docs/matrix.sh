#!/usr/bin/env bash
# Makes the matrix: runs every public library that is installed here through the suite, and writes the page and the table.
# A run that was stopped goes on; OUT and RUNS say where to, what follows selects cases:
#   OUT=found RUNS=found/runs docs/matrix.sh --chapter basics
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-docs}
refattn matrix \
  torch torch-math torch-flash torch-flex torch-mha torch-mha_weights \
  transformers transformers-sdpa transformers-gemma2 transformers-gpt_oss jax jax-flash jax-splash \
  onnx onnx-opset24 onnx-opset25 onnxruntime onnxruntime-opset24 onnxruntime-opset25 onnxruntime-mha onnxruntime-gqa \
  openvino openvino-bf16 mlx tinygrad keras tensorflow tensorflow-attention triton flash_attn flashinfer xformers refattn \
  --runs "${RUNS:-runs}" --jobs "${JOBS:-1}" --html "$out/matrix.html" --markdown "$out/MATRIX.md" "$@"
