// A kernel in JavaScript against golden vectors: forward and backward in float64, rounded once to each output's dtype.
//
//   node check.js DIR [BUG] [--answers OUT]
//
// BUG breaks it: see `bug` below.  --answers writes what it returned, as OUT/ID.safetensors.  Exit status: 0 if
// no case failed and some passed, 1 if not.
"use strict";
const fs = require("fs");
const path = require("path");

const args = process.argv.slice(2);
const answers = args.includes("--answers") ? args.splice(args.indexOf("--answers"), 2)[1] : null;
const [folder, bug = ""] = args;

// ---- files

/* README: begin */
function load(file) { // the tensors of a safetensors file: {name: {dtype, shape, data}}
  const bytes = fs.readFileSync(file), length = Number(bytes.readBigUInt64LE(0)), start = 8 + length;
  const header = JSON.parse(bytes.toString("utf8", 8, start));
  const read = {
    F64: (at) => bytes.readDoubleLE(at), F32: (at) => bytes.readFloatLE(at), U8: (at) => bytes[at], BOOL: (at) => bytes[at],
    I32: (at) => bytes.readInt32LE(at), I8: (at) => bytes.readInt8(at),
    F16: (at) => narrow(bytes.readUInt16LE(at), 5, 10, true), BF16: (at) => narrow(bytes.readUInt16LE(at), 8, 7, true),
    F8_E5M2: (at) => narrow(bytes[at], 5, 2, true), F8_E4M3: (at) => narrow(bytes[at], 4, 3, false),
  };
  const size = (dtype) => ({ F64: 8, F32: 4, I32: 4, F16: 2, BF16: 2 })[dtype] || 1;
  delete header.__metadata__;
  for (const t of Object.values(header)) {
    const [begin, end] = t.data_offsets, count = (end - begin) / size(t.dtype);
    t.data = Float64Array.from({ length: count }, (_, n) => read[t.dtype](start + begin + n * size(t.dtype)));
  }
  return header;
}

function inside(got, lo, hi, free) { // the index of the first element that is out of its interval, or -1
  return lo.data.findIndex((a, n) => {
    const x = rounded(got[n], lo.dtype), pardon = free ? free.data[n] : 0;
    return !(pardon === 1 || (a <= x && x <= hi.data[n]) || (pardon === 2 && !Number.isFinite(x)));
  });
}
/* README: end */

function narrow(bits, exponentBits, mantissaBits, ieee) { // a number of 16 or 8 bits
  const top = 2 ** exponentBits - 1, bias = (top - 1) / 2, sign = bits >> (exponentBits + mantissaBits) ? -1 : 1;
  const exponent = (bits >> mantissaBits) & top, mantissa = bits & (2 ** mantissaBits - 1);
  if (exponent === top && ieee) return mantissa ? NaN : sign * Infinity;
  if (exponent === top && mantissa === 2 ** mantissaBits - 1) return NaN;
  if (!exponent) return sign * mantissa * 2 ** (1 - bias - mantissaBits);
  return sign * (mantissa + 2 ** mantissaBits) * 2 ** (exponent - bias - mantissaBits);
}

function rounded(x, dtype) { // to the nearest number of the dtype, ties to even
  if (dtype === "F64") return x;
  if (dtype === "F32") return Math.fround(x);
  const [bits, least, most] = dtype === "F16" ? [11, -14, 65504] : [8, -126, (2 - 2 ** -7) * 2 ** 127];
  if (!Number.isFinite(x) || x === 0) return x;
  let exponent = Math.max(Math.floor(Math.log2(Math.abs(x))), least - 1); // off by one at most
  if (2 ** (exponent + 1) <= Math.abs(x)) exponent += 1;
  if (2 ** exponent > Math.abs(x)) exponent -= 1;
  const step = 2 ** (Math.max(exponent, least) - bits + 1), units = x / step;
  let whole = Math.round(units);
  if (Math.abs(units - Math.trunc(units)) === 0.5) whole = 2 * Math.round(units / 2);
  return Math.abs(whole * step) > most ? Math.sign(x) * Infinity : whole * step;
}

function save(file, tensors) { // float64 tensors {name: {shape, data}}
  const header = {};
  let end = 0;
  for (const [name, t] of Object.entries(tensors)) {
    header[name] = { dtype: "F64", shape: t.shape, data_offsets: [end, (end += 8 * t.data.length)] };
  }
  const text = Buffer.from(JSON.stringify(header)), bytes = Buffer.alloc(8 + text.length + end);
  bytes.writeBigUInt64LE(BigInt(text.length), 0);
  text.copy(bytes, 8);
  let at = 8 + text.length;
  for (const t of Object.values(tensors)) for (const x of t.data) at = bytes.writeDoubleLE(x, at);
  fs.writeFileSync(file, bytes);
}

// ---- the kernel

const WANTED = ["out", "lse", "dq", "dk", "dv", "dbias", "dsinks"];

function unsupported(entry) {
  if (entry.score_mod !== null) return "score_mod";
  if ("cos" in entry.inputs) return "rotary";
  if ("k_scale" in entry.inputs) return "quantised";
  if (!["Dense", "Strided", "Shared"].includes(entry.storage) || entry.layout !== "BHLD") return "storage";
  return Object.keys(entry.outputs).some((name) => WANTED.includes(name)) ? null : "outputs";
}

function where(shape, b, h, i, j) { // an axis of 1 stands for all
  const [B, H, Q, K] = shape;
  return (((B > 1 ? b : 0) * H + (H > 1 ? h : 0)) * Q + (Q > 1 ? i : 0)) * K + (K > 1 ? j : 0);
}

function attention(c, x) {
  const { B, H, Hkv, Lq, Lk, D, Dv, scale, softcap } = c;
  const zeros = (...shape) => ({ shape, data: new Float64Array(shape.reduce((a, n) => a * n, 1)) });
  const y = {
    out: zeros(B, H, Lq, Dv), lse: zeros(B, H, Lq), dq: zeros(B, H, Lq, D), dk: zeros(B, Hkv, Lk, D),
    dv: zeros(B, Hkv, Lk, Dv), dbias: zeros(...(x.bias ? x.bias.shape : [0])), dsinks: zeros(H),
  };
  for (let b = 0; b < B; b++) for (let h = 0; h < H; h++) for (let i = 0; i < Lq; i++) {
    const g = Math.floor(h / (H / Hkv)), r = (b * H + h) * Lq + i, s = [], bend = [];
    const sink = x.sinks ? x.sinks.data[h] : -Infinity, key = (j) => (b * Hkv + g) * Lk + j;
    const seen = [];
    for (let j = 0; j < Lk; j++) {
      const bias = x.bias ? x.bias.data[where(x.bias.shape, b, h, i, j)] : 0;
      if (!x.mask.data[where(x.mask.shape, b, h, i, j)] || bias === -Infinity) continue;
      let t = 0;
      for (let d = 0; d < D; d++) t += x.q.data[r * D + d] * x.k.data[key(j) * D + d];
      t *= scale;
      const tanh = softcap === null ? 0 : Math.tanh(t / softcap);
      bend[j] = bug === "slope_of_softcap" ? 1 : 1 - tanh * tanh;
      s[j] = (softcap === null ? t : softcap * tanh) + bias;
      seen.push(j);
    }
    const most = seen.reduce((a, j) => (a > s[j] ? a : s[j]), sink);
    if (!seen.length && sink === -Infinity) {
      y.lse.data[r] = -Infinity;
      continue;
    }
    let sum = Math.exp(sink - most);
    for (const j of seen) sum += s[j] = Math.exp(s[j] - most);
    y.lse.data[r] = most + Math.log(sum);
    const made = c.dropout === null || bug === "dropout_not_scaled" ? 1 : c.dropout < 1 ? 1 / (1 - c.dropout) : 0;
    const kept = (j) => (c.dropout === null || x.keep.data[where(x.keep.shape, b, h, i, j)] ? made : 0);
    let delta = 0;
    const dp = [];
    for (const j of seen) {
      s[j] /= sum;
      dp[j] = 0;
      for (let d = 0; d < Dv; d++) {
        const v = x.v.data[key(j) * Dv + d];
        y.out.data[r * Dv + d] += s[j] * kept(j) * v;
        if (x.dout) dp[j] += x.dout.data[r * Dv + d] * v * kept(j);
      }
      delta += s[j] * dp[j];
    }
    if (!x.dout) continue;
    const dlse = x.dlse && bug !== "dlse_ignored" ? x.dlse.data[r] : 0;
    if (bug === "delta_missing") delta = 0;
    if (x.sinks && sink !== -Infinity) y.dsinks.data[h] += (Math.exp(sink - most) / sum) * (dlse - delta);
    for (const j of seen) {
      const dt = s[j] * (dp[j] - delta + dlse), ds = dt * bend[j] * (bug === "scale_twice" ? scale * scale : scale);
      if (x.bias) y.dbias.data[where(x.bias.shape, b, h, i, j)] += dt;
      for (let d = 0; d < D; d++) {
        y.dq.data[r * D + d] += ds * x.k.data[key(j) * D + d];
        y.dk.data[key(j) * D + d] += ds * x.q.data[r * D + d];
      }
      for (let d = 0; d < Dv; d++) y.dv.data[key(j) * Dv + d] += s[j] * kept(j) * x.dout.data[r * Dv + d];
    }
  }
  return y;
}

// ---- all cases

const index = JSON.parse(fs.readFileSync(path.join(folder, "index.json"), "utf8"));
const counts = { passed: 0, failed: 0, unsupported: 0 };
for (const entry of index.cases) {
  const reason = unsupported(entry);
  let verdict = "unsupported", note = reason || "";
  if (!reason) {
    if (entry.file.split("/").includes("..")) throw new Error(`${entry.file} is outside the folder`);
    const x = load(path.join(folder, entry.file)), y = attention(entry, x), given = {};
    verdict = "passed";
    for (const name of WANTED.filter((name) => name in entry.outputs)) {
      given[name] = y[name];
      const at = inside(y[name].data, x[`lo.${name}`], x[`hi.${name}`], x[`free.${name}`]);
      if (at < 0) continue;
      verdict = "failed";
      note += ` ${name}[${at}] = ${y[name].data[at]}, not in [${x[`lo.${name}`].data[at]}, ${x[`hi.${name}`].data[at]}]`;
    }
    if (answers) save(path.join(answers, `${entry.id}.safetensors`), given);
  }
  counts[verdict] += 1;
  console.log(`${verdict} ${entry.id} ${note}`);
}
console.log(`${counts.passed} passed, ${counts.failed} failed, ${counts.unsupported} unsupported`);
process.exitCode = counts.failed || !counts.passed ? 1 : 0;
