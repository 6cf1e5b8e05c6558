"""Mutations of the oracle's source and of streaming's, and how a mutant is made.

A mutation replaces a piece of text that occurs once in its file; a row is what it does, the old text
and the new.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import refattn

PACKAGE = Path(refattn.__file__).parent


class Mutation(NamedTuple):
    what: str
    file: str
    old: str
    new: str


Rows = tuple[tuple[str, str, str], ...]


def _mutations(files: dict[str, Rows]) -> tuple[Mutation, ...]:
    return tuple(Mutation(what, file, old, new) for file, rows in files.items() for what, old, new in rows)


ORACLE = _mutations(
    {
        "arguments": (
            ("default scale 1/D", "return D**-0.5 if D else 1.0", "return 1 / D if D else 1.0"),
            ("heads tiled", "np.repeat(k, self.group, axis=1), np.repeat(v, self.group, axis=1)",
             "np.tile(k, (1, self.group, 1, 1)), np.tile(v, (1, self.group, 1, 1))"),
            ("values tiled", "np.repeat(v, self.group, axis=1)", "np.tile(v, (1, self.group, 1, 1))"),
            ("heads of a group apart", "x.reshape(B, H // self.group, self.group, L, D).sum(2)",
             "x.reshape(B, self.group, H // self.group, L, D).sum(1)"),
            ("first head of a group alone", "self.group, L, D).sum(2)", "self.group, L, D)[:, :, 0]"),
            ("mask ignored", 'visible & broadcast(mask, "mask", shape)', 'visible | broadcast(mask, "mask", shape)'),
            ("mask inverted", 'visible & broadcast(mask, "mask", shape)', 'visible & ~broadcast(mask, "mask", shape)'),
            ("bias of -inf hides nothing", "visible & ~np.isneginf(self.bias)", "visible"),
            ("weights not made up for dropout", "1 / (1 - dropout) if dropout < 1", "1.0 if dropout < 1"),
            ("made up by 1 / p", "1 / (1 - dropout) if dropout < 1", "1 / dropout if dropout < 1"),
            ("keep inverted", 'np.where(broadcast(keep, "keep", shape)', 'np.where(~broadcast(keep, "keep", shape)'),
            ("b and h exchanged", "np.ogrid[tuple(slice(n) for n in shape)]",
             "[np.ogrid[tuple(slice(n) for n in shape)][n] for n in (1, 0, 2, 3)]"),
            ("i and j exchanged", "np.ogrid[tuple(slice(n) for n in shape)]",
             "[np.ogrid[tuple(slice(n) for n in shape)][n] for n in (0, 1, 3, 2)]"),
        ),
        "attention": (
            ("unscaled", "s = x.scale * products", "s = products"),
            ("softcap not multiplied back", "x.softcap * np.tanh(s / x.softcap)", "np.tanh(s / x.softcap)"),
            ("softcap clips", "x.softcap * np.tanh(s / x.softcap)", "np.clip(s, -x.softcap, x.softcap)"),
            ("score_mod before softcap", "_of_mod(x.score_mod, before, x)", "_of_mod(x.score_mod, s, x)"),
            ("bias subtracted", "capped + x.bias", "capped - x.bias"),
            ("bias before softcap", "s = x.scale * products",
             "s = x.scale * products + (0 if x.bias is None else x.bias)"),
            ("bias before score_mod", "_of_mod(x.score_mod, before, x)",
             "_of_mod(x.score_mod, before + (0 if x.bias is None else x.bias), x)"),
            ("hidden scores are -1e9", "np.where(x.visible, biased, -np.inf)", "np.where(x.visible, biased, -1e9)"),
            ("maximum at least 0", "t.max(-1, initial=-np.inf", "t.max(-1, initial=0.0"),
            ("maximum over hidden keys too", "m = t.max(", "m = np.where(np.isfinite(biased), biased, -np.inf).max("),
            ("no maximum", "m = t.max(-1, initial=-np.inf, keepdims=True)", "m = np.zeros_like(t[..., :1])"),
            ("maximum without the sink", "m = np.maximum(m, x.sinks[:, None, None])", "pass"),
            ("rows of a sink alone shifted by 0", "np.isneginf(m) & ~x.visible.any", "~x.visible.any"),
            ("rows of nothing shifted by -inf", "np.where(np.isneginf(m) & ~x.visible.any(-1, keepdims=True), 0.0, m)",
             "m"),
            ("sink not in the denominator", "total = total + share", "pass"),
            ("sink in the denominator twice", "total = total + share", "total = total + 2 * share"),
            ("lse without the maximum", "(m + np.log(total))", "(np.log(total))"),
            ("lse base 2", "(m + np.log(total))", "(m + np.log2(total))"),
            ("weights not normalised", "np.where(x.visible, p / total, 0.0)", "p"),
            ("sink's share not normalised", "share / total", "share"),
            ("dropout in lse", "total = p.sum(-1", "total = (p if x.kept is None else p * x.kept).sum(-1"),
            ("no dropout", "p if x.kept is None else p * x.kept", "p"),
            ("no dropout in out", "Attention(select_matmul(w.kept,", "Attention(select_matmul(w.weights,"),
            ("no dropout in delta", "out = select_matmul(w.kept, x.v, x.visible)\n    dout",
             "out = select_matmul(w.weights, x.v, x.visible)\n    dout"),
            ("no dropout in dv", "w.kept.swapaxes(-1, -2), dout", "w.weights.swapaxes(-1, -2), dout"),
            ("no dropout in dp", "dp = dp * x.kept", "pass"),
            ("dropout in dt twice", "w.weights * (dp + incoming)", "w.kept * (dp + incoming)"),
            ("dropout on delta", "w.weights * (dp + incoming)",
             "w.weights * (dp + incoming * (1 if x.kept is None else x.kept))"),
            ("no delta", "incoming = dlse[..., None] - delta", "incoming = dlse[..., None] + 0 * delta"),
            ("dlse ignored", "incoming = dlse[..., None] - delta", "incoming = -delta"),
            ("dlse negative", "incoming = dlse[..., None] - delta", "incoming = -dlse[..., None] - delta"),
            ("delta of a row that sees a sink alone", "some = x.visible.any(-1, keepdims=True)",
             "some = np.ones_like(w.lse[..., None], dtype=bool)"),
            ("hidden NaN in dt", "np.where(x.visible, w.weights * (dp + incoming), 0.0)",
             "w.weights * (dp + incoming)"),
            ("no slope of score_mod", "dt * _of_mod(x.score_mod.slope, w.before, x)", "dt"),
            ("slope of score_mod at the score", "x.score_mod.slope, w.before", "x.score_mod.slope, w.scores"),
            ("slope of score_mod at its value", "x.score_mod.slope, w.before", "x.score_mod.slope, w.capped"),
            ("slope of softcap 1 / cosh", "np.cosh(z) ** -2.0", "np.cosh(z) ** -1.0"),
            ("slope of softcap is 1", "ds = np.where(x.visible, dc * bend, 0.0)", "ds = dc"),
            ("slope of softcap without that of score_mod", "ds = np.where(x.visible, dc * bend, 0.0)",
             "ds = np.where(x.visible, dt * bend, 0.0)"),
            ("dsoftcap: sign", "np.tanh(z) - np.where(bend == 0", "np.tanh(z) + np.where(bend == 0"),
            ("dsoftcap: tanh alone", "np.tanh(z) - np.where(bend == 0, 0.0, z * bend)", "np.tanh(z)"),
            ("dsoftcap from ds", "dc * share", "ds * share"),
            ("dsoftcap from dt", "dc * share", "dt * share"),
            ("dscale from dt", "ds * w.products", "dt * w.products"),
            ("dscale of the logarithm", "ds * w.products", "ds * w.scores"),
            ("hidden NaN in dscale", "np.where(x.visible, ds * w.products, 0.0)", "(ds * w.products)"),
            ("dq unscaled", "dq = x.scale * ", "dq = "),
            ("dk unscaled", "dk = x.scale * ", "dk = "),
            ("hidden NaN in dq", "select_matmul(ds, x.k, x.visible)", "ds @ x.k"),
            ("hidden NaN in dk", "select_matmul(ds.swapaxes(-1, -2), x.q, x.visible.swapaxes(-1, -2))",
             "ds.swapaxes(-1, -2) @ x.q"),
            ("hidden NaN in dv", "select_matmul(w.kept.swapaxes(-1, -2), dout, x.visible.swapaxes(-1, -2))",
             "w.kept.swapaxes(-1, -2) @ dout"),
            ("hidden NaN in out", "Attention(select_matmul(w.kept, x.v, x.visible)", "Attention(w.kept @ x.v"),
            ("dq from dt", "select_matmul(ds, x.k", "select_matmul(dt, x.k"),
            ("dk from dt", "select_matmul(ds.swapaxes", "select_matmul(dt.swapaxes"),
            ("dbias after the slopes", "sum_to_shape(dt, x.bias_shape)", "sum_to_shape(ds, x.bias_shape)"),
            ("dbias: mean over what it broadcast over", "x.sum(axis=stretched, keepdims=True)",
             "x.mean(axis=stretched, keepdims=True)"),
            ("dbias: first of the leading axes alone", "x = x.sum(axis=tuple(range(x.ndim - len(shape))))",
             "x = x[(0,) * (x.ndim - len(shape))]"),
            ("dsinks: sign", "w.share * incoming).sum(", "-w.share * incoming).sum("),
            ("dsinks: first batch entry alone", "incoming).sum((0, 2, 3))", "incoming)[:1].sum((0, 2, 3))"),
            ("dsinks: NaN of rows that see nothing", "np.where(w.lse[..., None] == -np.inf, 0.0, w.share * incoming)",
             "(w.share * incoming)"),
            ("hidden NaN taken for finite", "if finite.all():", "if True:"),
            ("hidden NaN reaches whole columns", "visible[..., :, n, None] & ~finite[", "~finite["),
            ("capped without score_mod", "Scores(w.scores, w.capped,", "Scores(w.scores, w.before,"),
        ),
    }
)  # fmt: skip

STREAMING = _mutations(
    {
        "rules": (
            ("heads tiled", "return h // (H // Hkv)", "return h % Hkv"),
            ("default scale 1/D", "return D**-0.5 if D else 1.0", "return 1 / D if D else 1.0"),
            ("score_mod skipped", "self.round(modify(s), self.precision.scores)", "s"),
            ("bias subtracted", "s = self.round(s + bias", "s = self.round(s - bias"),
            ("softcap not multiplied back", "return cap * np.tanh(in_caps)", "return np.tanh(in_caps)"),
            ("hidden scores stay", "np.copyto(s, -np.inf, where=~visible)", "pass"),
            ("keep inverted", "np.where(kept, p, 0)", "np.where(kept, 0, p)"),
            ("weights not made up for dropout", "else 1 / (1 - dropout))", "else 1)"),
            ("delta from out alone", "(out * dout).sum(-1)", "out.sum(-1)"),
            ("slope of softcap 1 / cosh", "np.cosh(in_caps) ** -2.0", "np.cosh(in_caps) ** -1.0"),
            ("dropout in dp forgotten", "return self.drop(dp, kept) * undropped", "return dp"),
            ("slope of score_mod forgotten", "return dt * slope", "return dt"),
            ("dsoftcap: tanh alone", "np.where(slope == 0, 0, in_caps * slope)", "0"),
            ("dk unscaled", "return dk * scale", "return dk"),
            ("last head of a group alone", "return total + part", "return part"),
            ("dropout in the row sums", "return summed.sum(-1),", "return self.drop(summed, kept).sum(-1),"),
            ("hidden NaN leaks", "if finite.all():", "if True:"),
        ),
        "forward": (
            ("sink left out", "if head.sink is not None:", "if False:"),
            ("splits: the last alone", "reduce(rules.merge, states)", "states[-1]"),
            ("dropout made up for by no one", "done.out[rows] *= rules.undropped(x.dropout)", "pass"),
            ("shift of the whole head", "done.shift[rows] = online.shift_of(state.m)",
             "done.shift[:] = online.shift_of(state.m).max(initial=0)"),
        ),
        "backward": (
            ("delta of a row that sees a sink alone", "np.where(done.seen, rules.delta(out, dout), 0)",
             "rules.delta(out, dout)"),
            ("dropout in dv forgotten", "rules.drop(p, kept).T, dout", "p.T, dout"),
            ("dv not made up for dropout", "part_v if kept is None else part_v * undropped", "part_v"),
            ("slope of softcap forgotten", "ds = _hidden_is_0(dc * slope, visible)", "pass"),
            ("dscale of the last tile", "sums.dscale += ", "sums.dscale = "),
            ("dsinks of the last batch entry", 'rules.add_up("dsinks", sums.dsinks[h], ', "("),
            ("dbias of the last head", 'rules.add_up("dbias", head[rows, keys], dt)', "dt"),
            ("dq unscaled", "rules.scale_dq(part_q, scale)", "part_q"),
            ("dlse ignored", "np.where(alive, rules.arriving(dlse), 0) - delta", "-delta"),
        ),
        "matrices": (
            ("hidden weights stay", "np.where(visible, p, 0)", "np.exp(capped)"),
            ("biased without bias", "t = capped if bias is None", "t = capped if True"),
        ),
    }
)  # fmt: skip


@contextmanager
def mutant(package: str, mutation: Mutation | None) -> Iterator[ModuleType]:
    """`refattn.{package}` from a mutated copy of its source, under another name."""
    name = "refattn._mutated"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "_mutated"
        shutil.copytree(PACKAGE / package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutation is not None:
            path = copy / f"{mutation.file}.py"
            source = path.read_text(encoding="utf-8")
            assert source.count(mutation.old) == 1, f"{mutation.old!r} occurs {source.count(mutation.old)} times"
            path.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
        start = copy / "__init__.py"
        spec = importlib.util.spec_from_file_location(name, start, submodule_search_locations=[str(copy)])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            importlib.invalidate_caches()
            spec.loader.exec_module(module)
            yield module
        finally:
            for loaded in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
                del sys.modules[loaded]
