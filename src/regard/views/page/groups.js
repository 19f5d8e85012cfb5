// From tokens to words and spans: a link's weight is summed over the pieces that are read and
// averaged over those that read; what the others give comes from rows outside of the reading word.

import { page } from "./data.js";
import { folded, where } from "./say.js";

const units = {};

/** The words or tokens of a text, each a group of positions: what can be pinned and shaded. */
export function unitsOf(name, unit) {
  return (units[`${name} ${unit}`] ??= unit === "token" ? tokens(name) : words(name));
}

function tokens(name) {
  const text = page.texts[name];
  const spaced = new Map(text.words.map((word) => [word.positions[0], word.spaced]));
  return numbered(text.labels.map((label, p) => group(text, label, [p], spaced.get(p) ?? false)));
}

function words(name) {
  const text = page.texts[name];
  const found = text.words.map((word) => group(text, word.label, word.positions, word.spaced));
  const taken = new Set(found.flatMap((word) => word.positions));
  text.labels.forEach((label, p) => {
    if (!taken.has(p)) found.push(group(text, label, [p], true));
  });
  return numbered(found.sort((a, b) => a.positions[0] - b.positions[0]));
}

function group(text, label, positions, spaced) {
  text.sets ??= { special: new Set(text.special), never: new Set(text.never) };
  const special = positions.some((p) => text.sets.special.has(p));
  const never = positions.some((p) => text.sets.never.has(p));
  const named = label !== where(positions); // else the position is its name
  return { label, short: folded(label), named, positions, spaced: spaced || special, special, never };
}

function numbered(groups) {
  groups.forEach((one, n) => (one.number = n));
  groups.owner = new Map(groups.flatMap((one) => one.positions.map((p) => [p, one.number])));
  return groups;
}

/** What some positions read as, together. */
export function labelOf(name, positions, unit = "word") {
  const groups = unitsOf(name, unit);
  const within = [...new Set(positions.map((p) => groups.owner.get(p)))].map((n) => groups[n]);
  return within.map((one, n) => (n && one.spaced ? " " : "") + one.short).join("");
}

/** The rows of a layer that positions are; those that were not recorded are left out. */
export function rowsOf(layer, positions) {
  const rows = positions.map((p) => p - layer.said.offset);
  return rows.filter((row) => row >= 0 && row < layer.rows);
}

const buffers = new Map();

/** Arrays for one reading; `shared` ones are filled again by the next. */
function arrays(keys, shared) {
  if (shared && buffers.has(keys)) return buffers.get(keys);
  const made = { weight: new Float64Array(keys), baseline: new Float64Array(keys), distance: new Float64Array(keys), seen: new Uint8Array(keys) };
  if (shared) buffers.set(keys, made);
  return made;
}

/** How a group of rows reads every token: weight, baseline, distance, seen, (S,) each. */
export function reading(layer, head, rows, bare, shared = false) {
  const out = arrays(layer.keys, shared);
  return rows.length === 1 ? oneRow(layer, head, rows[0], bare, out) : severalRows(layer, head, rows, bare, out);
}

function oneRow(layer, head, row, bare, { weight, baseline, distance, seen }) {
  const sums = layer.sums(bare), { keys } = layer;
  const own = layer.weights(head, row, bare);
  const counts = !layer.said.real || layer.get("real")[row];
  const at = head * keys, far = head * (layer.rows + keys - 1) + layer.rows - 1 - row;
  const seenAt = sums.headed.seen ? at : 0;
  const metAt = sums.headed.met ? far : layer.rows - 1 - row;
  for (let key = 0; key < keys; key++) {
    const w = own[key];
    seen[key] = Number.isNaN(w) ? 0 : 1;
    weight[key] = seen[key] ? w : 0;
    const mine = counts && seen[key] ? 1 : 0, given = mine ? w : 0;
    const readers = sums.seen[seenAt + key] - mine;
    baseline[key] = readers > 0 ? Math.max(sums.received[at + key] - given, 0) / readers : NaN;
    const alike = sums.met[metAt + key] - mine;
    distance[key] = !layer.said.distances ? -Infinity
      : alike > 0 ? Math.max(sums.along[far + key] - given, 0) / alike : NaN;
  }
  return { weight, baseline, distance, seen };
}

function severalRows(layer, head, rows, bare, { weight, baseline, distance, seen }) {
  const sums = layer.sums(bare), { keys } = layer;
  const real = layer.said.real ? layer.get("real") : null;
  const total = new Float64Array(keys), count = new Float64Array(keys);
  const most = layer.rows + keys - 1;
  const along = new Float64Array(most), met = new Float64Array(most);
  for (const array of [weight, distance, seen]) array.fill(0);
  for (const row of rows) {
    const own = layer.weights(head, row, bare);
    for (let key = 0; key < keys; key++) {
      if (Number.isNaN(own[key])) continue;
      weight[key] += own[key] / rows.length;
      seen[key] = 1;
      if (real && !real[row]) continue;
      total[key] += own[key];
      count[key] += 1;
      along[key - row + layer.rows - 1] += own[key];
      met[key - row + layer.rows - 1] += 1;
    }
  }
  const at = head * keys, far = head * most;
  for (let key = 0; key < keys; key++) {
    const left = sums.seen[(sums.headed.seen ? at : 0) + key] - count[key];
    baseline[key] = left > 0 ? Math.max(sums.received[at + key] - total[key], 0) / left : NaN;
    if (!layer.said.distances) distance[key] = -Infinity;
    else for (const row of rows) {
      const place = key - row + layer.rows - 1;
      const alike = sums.met[(sums.headed.met ? far : 0) + place] - met[place];
      distance[key] += alike > 0 ? Math.max(sums.along[far + place] - along[place], 0) / alike / rows.length : NaN;
    }
  }
  return { weight, baseline, distance, seen };
}

/** One link: a group of rows, a group of keys; `valued`: with what it contributes. */
export function link(layer, head, rows, keys, bare, valued = false) {
  const lengths = valued ? layer.lengths(head) : null; // values are decoded where they are asked for
  if (rows.length * keys.length >= layer.keys)
    return summed(reading(layer, head, rows, bare), keys, lengths);
  const read = { weight: {}, baseline: {}, distance: {}, seen: {} };
  for (const key of keys) pairs(layer, head, rows, key, bare, read);
  return summed(read, keys, lengths);
}

/** The same as `reading`, for one key: only the weights that it needs. */
function pairs(layer, head, rows, key, bare, out) {
  const sums = layer.sums(bare);
  const real = layer.said.real ? layer.get("real") : null;
  const counted = (row, at) => {
    if (at < 0 || at >= layer.keys || (real && !real[row])) return null;
    const w = layer.weight(head, row, at, bare);
    return Number.isNaN(w) ? null : w;
  };
  const given = rows.map((row) => layer.weight(head, row, key, bare)).filter((w) => !Number.isNaN(w));
  out.weight[key] = given.reduce((sum, w) => sum + w, 0) / (rows.length || 1);
  out.seen[key] = given.length ? 1 : 0;
  const own = rows.map((row) => counted(row, key)).filter((w) => w !== null);
  const at = head * layer.keys + key;
  out.baseline[key] = others(
    sums.received[at], sums.seen[sums.headed.seen ? at : key], own);
  out.distance[key] = layer.said.distances ? 0 : -Infinity;
  if (!layer.said.distances) return;
  for (const row of rows) {
    const place = key - row + layer.rows - 1;
    const far = head * (layer.rows + layer.keys - 1) + place;
    const mine = rows.map((other) => counted(other, key + other - row)).filter((w) => w !== null);
    out.distance[key] +=
      others(sums.along[far], sums.met[sums.headed.met ? far : place], mine) / rows.length;
  }
}

/** What is left of a sum for the other rows, on average; NaN where there is none. */
function others(total, count, own) {
  const left = count - own.length;
  return left > 0 ? Math.max(total - own.reduce((sum, w) => sum + w, 0), 0) / left : NaN;
}

/** Sum over the keys of a group; without lengths of values no contribution. */
export function summed(read, keys, lengths, out = {}) {
  let weight = 0, baseline = 0, distance = 0, contribution = lengths ? 0 : NaN;
  out.allowed = false;
  for (const key of keys) {
    if (read.seen[key] === 1) out.allowed = true;
    weight += read.weight[key];
    baseline += read.baseline[key];
    distance += read.distance[key];
    if (lengths) contribution += read.weight[key] && read.weight[key] * lengths[key];
  }
  out.weight = weight;
  out.baseline = baseline;
  out.distance = distance;
  out.contribution = contribution;
  out.lift = out.allowed ? out.weight - Math.max(out.baseline, out.distance) : NaN;
  return out;
}
