// From tokens to words and spans: a link's weight is summed over the pieces that are read and
// averaged over those that read; what the others give comes from rows outside of the reading word.

import { page } from "./data.js";

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
  return { label, positions, spaced: spaced || special, special, never };
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
  return within.map((one, n) => (n && one.spaced ? " " : "") + one.label).join("");
}

/** The rows of a layer that positions are; those that were not recorded are left out. */
export function rowsOf(layer, positions) {
  const rows = positions.map((p) => p - layer.said.offset);
  return rows.filter((row) => row >= 0 && row < layer.rows);
}

/** How a group of rows reads every token: weight, baseline, distance, (S,) each. */
export function reading(layer, head, rows, bare) {
  const sums = layer.sums(bare), { keys } = layer;
  const real = layer.said.real ? layer.get("real") : null;
  const total = new Float64Array(keys), count = new Float64Array(keys);
  const weight = new Float64Array(keys), seen = new Uint8Array(keys);
  const along = new Map(), own = rows.map((row) => layer.weights(head, row, bare));
  rows.forEach((row, n) => {
    for (let key = 0; key < keys; key++) {
      const w = own[n][key];
      if (Number.isNaN(w)) continue;
      weight[key] += w / rows.length;
      seen[key] = 1;
      if (real && !real[row]) continue;
      total[key] += w;
      count[key] += 1;
      if (rows.length > 1) {
        const far = along.get(key - row) ?? [0, 0];
        along.set(key - row, [far[0] + w, far[1] + 1]);
      }
    }
  });
  const baseline = new Float64Array(keys), distance = new Float64Array(keys);
  const at = head * keys, far = head * (layer.rows + keys - 1);
  for (let key = 0; key < keys; key++) {
    const others = sums.seen[(sums.headed.seen ? at : 0) + key] - count[key];
    baseline[key] = others > 0 ? Math.max(sums.received[at + key] - total[key], 0) / others : NaN;
  }
  if (!layer.said.distances) distance.fill(-Infinity);
  else rows.forEach((row, n) => {
    for (let key = 0; key < keys; key++) {
      const place = key - row + layer.rows - 1;
      const w = own[n][key];
      const lone = Number.isNaN(w) || (real && !real[row]) ? [0, 0] : [w, 1];
      const mine = rows.length > 1 ? along.get(key - row) ?? [0, 0] : lone;
      const others = sums.met[(sums.headed.met ? far : 0) + place] - mine[1];
      distance[key] += others > 0
        ? Math.max(sums.along[far + place] - mine[0], 0) / others / rows.length
        : NaN;
    }
  });
  return { weight, baseline, distance, seen };
}

/** One link: a group of rows, a group of keys. */
export function link(layer, head, rows, keys, bare) {
  if (rows.length * keys.length >= layer.keys)
    return summed(reading(layer, head, rows, bare), keys, layer.lengths(head));
  const read = { weight: {}, baseline: {}, distance: {}, seen: {} };
  for (const key of keys) pairs(layer, head, rows, key, bare, read);
  return summed(read, keys, layer.lengths(head));
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

/** Sum over the keys of a group. */
export function summed(read, keys, lengths, out = {}) {
  out.weight = out.baseline = out.distance = out.contribution = 0;
  out.allowed = false;
  for (const key of keys) {
    out.allowed ||= read.seen[key] === 1;
    out.weight += read.weight[key];
    out.baseline += read.baseline[key];
    out.distance += read.distance[key];
    out.contribution += read.weight[key] && read.weight[key] * lengths[key];
  }
  out.lift = out.allowed ? out.weight - Math.max(out.baseline, out.distance) : NaN;
  return out;
}
