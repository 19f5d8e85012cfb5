// Attention, computed for what is looked at: exp(score - lse), as the library rebuilds it.
// Numbers are float64 here; what is carried is as the model had it.

import { array, page } from "./data.js";

const MOST_ROWS = 4000; // rows of weights that are kept

export class Attention {
  constructor(said) {
    [this.count, this.rows, this.keys, this.groups, this.width, this.depth] = said.shape;
    this.said = said;
    this.each = this.count / this.groups; // query heads that share a key head
    this.kept = new Map();
    this.read = {};
  }

  /** An array of the header by name, decoded once. */
  get(name) {
    return (this.read[name] ??= array(this.said[name]));
  }

  label(head) {
    return `${this.said.number}.${this.said.heads[head]}`;
  }

  /** What a head is called; a call alone has no layer. */
  called(head) {
    const { number, heads, kind } = this.said;
    return kind === "call" ? `Head ${heads[head]}` : `Layer ${number} head ${heads[head]}`;
  }

  /** lse and sums: the model's, or those without special tokens and sinks. */
  sums(bare) {
    const name = bare && this.said.without ? "without" : "sums";
    if (!this.read[name]) {
      const said = this.said[name];
      const out = { excluded: new Uint8Array(this.keys), sink: name === "sums" };
      for (const part of ["lse", "received", "along", "seen", "met"]) out[part] = array(said[part]);
      out.headed = { seen: said.seen.shape[0] > 1, met: said.met.shape[0] > 1 };
      for (const key of said.keys ?? []) out.excluded[key] = 1;
      this.read[name] = out;
    }
    return this.read[name];
  }

  allowed(head, row, key) {
    const { said } = this;
    if (said.first && (key < this.get("first")[row] || key >= this.get("past")[row])) return false;
    if (said.segments) {
      const [ofRows, ofKeys] = (this.read.segments ??= said.segments.map(array));
      if (ofRows[row] !== ofKeys[key]) return false;
    }
    if (said.mask) {
      const [heads, rows, keys] = said.mask.of;
      const line = (heads > 1 ? head : 0) * rows + (rows > 1 ? row : 0);
      const at = keys > 1 ? key : 0;
      if (!((this.get("mask")[line * Math.ceil(keys / 8) + (at >> 3)] >> (at & 7)) & 1)) return false;
    }
    return !said.bias || this.bias(head, row, key) !== -Infinity;
  }

  bias(head, row, key) {
    if (!this.said.bias) return 0;
    const [heads, rows, keys] = this.said.bias.shape;
    const line = (heads > 1 ? head : 0) * rows + (rows > 1 ? row : 0);
    return this.get("bias")[line * keys + (keys > 1 ? key : 0)];
  }

  /** Query · key, before anything else. */
  product(head, row, key) {
    const query = this.get("query"), keys = this.get("key"), { width } = this;
    const a = (head * this.rows + row) * width;
    const b = (Math.floor(head / this.each) * this.keys + key) * width;
    return dot(query, a, keys, b, width);
  }

  capped(scaled) {
    const cap = this.said.softcap;
    return cap ? cap * Math.tanh(scaled / cap) : scaled;
  }

  /** What enters the softmax; -Infinity where the row may not attend. */
  score(head, row, key) {
    if (!this.allowed(head, row, key)) return -Infinity;
    const score = this.capped(this.product(head, row, key) * this.said.scale);
    return this.said.bias ? score + this.bias(head, row, key) : score;
  }

  /** One weight; NaN where the row may not attend. */
  weight(head, row, key, bare) {
    const sums = this.sums(bare);
    if (sums.excluded[key]) return NaN;
    const score = this.score(head, row, key);
    return score === -Infinity ? NaN : Math.exp(score - sums.lse[head * this.rows + row]);
  }

  /** All weights of a row, (S,); NaN where it may not attend. */
  weights(head, row, bare) {
    const name = (head * this.rows + row) * 2 + (bare ? 1 : 0);
    let found = this.kept.get(name);
    if (!found) {
      found = this.fill(head, row, bare, new Float64Array(this.keys), 0, this.keys);
      if (this.kept.size * page.layers.length > MOST_ROWS) this.kept.clear();
      this.kept.set(name, found);
    }
    return found;
  }

  /** Weights of a row on keys first ≤ key < past, into `out`. */
  fill(head, row, bare, out, first, past) {
    const query = this.get("query"), keys = this.get("key"), { width, said } = this;
    const sums = this.sums(bare);
    const lse = sums.lse[head * this.rows + row];
    const a = (head * this.rows + row) * width;
    const free = !said.first && !said.mask && !said.segments && !said.bias;
    const begin = said.first ? Math.max(first, this.get("first")[row]) : first;
    const end = said.first ? Math.min(past, this.get("past")[row]) : past;
    out.fill(NaN);
    let b = (Math.floor(head / this.each) * this.keys + begin) * width;
    for (let key = begin; key < end; key++, b += width) {
      if (sums.excluded[key] || (!free && !this.allowed(head, row, key))) continue;
      let score = dot(query, a, keys, b, width) * said.scale;
      if (said.softcap) score = this.capped(score);
      if (said.bias) score += this.bias(head, row, key);
      out[key - first] = Math.exp(score - lse);
    }
    return out;
  }

  /** What the head's sink takes of a row. */
  sink(head, row, bare) {
    const logit = this.said.sinks?.[head] ?? null;
    const sums = this.sums(bare);
    if (logit === null || (bare && !sums.sink)) return 0;
    return Math.exp(logit - sums.lse[head * this.rows + row]);
  }

  /** The weight of a row that went with special tokens and sinks. */
  removed(head, row) {
    const at = head * this.rows + row;
    const rest = this.sums(true).lse[at] - this.sums(false).lse[at];
    return Number.isNaN(rest) ? 0 : 1 - Math.exp(rest);
  }

  /** Lengths of the values of a head, (S,). */
  lengths(head) {
    const group = Math.floor(head / this.each);
    this.read.lengths ??= [];
    if (!this.read.lengths[group]) {
      const value = this.get("value"), { depth } = this;
      const out = new Float64Array(this.keys);
      for (let key = 0, at = group * this.keys * depth; key < this.keys; key++) {
        let sum = 0;
        for (let d = 0; d < depth; d++, at++) sum += value[at] * value[at];
        out[key] = Math.sqrt(sum);
      }
      this.read.lengths[group] = out;
    }
    return this.read.lengths[group];
  }

  /** The output of a row: weights times values, (V,). */
  output(head, row, bare) {
    const weights = this.weights(head, row, bare);
    const value = this.get("value"), { depth } = this;
    const out = new Float64Array(depth);
    let at = Math.floor(head / this.each) * this.keys * depth;
    for (let key = 0; key < this.keys; key++, at += depth) {
      const weight = weights[key];
      if (!Number.isNaN(weight)) for (let d = 0; d < depth; d++) out[d] += weight * value[at + d];
    }
    return out;
  }
}

/** Four sums at a time: a processor need not wait for one addition before the next. */
function dot(query, a, keys, b, width) {
  let one = 0, two = 0, three = 0, four = 0, d = 0;
  for (; d + 3 < width; d += 4) {
    one += query[a + d] * keys[b + d];
    two += query[a + d + 1] * keys[b + d + 1];
    three += query[a + d + 2] * keys[b + d + 2];
    four += query[a + d + 3] * keys[b + d + 3];
  }
  for (; d < width; d++) one += query[a + d] * keys[b + d];
  return one + two + (three + four);
}

export const layers = page.layers.map((said) => new Attention(said));
