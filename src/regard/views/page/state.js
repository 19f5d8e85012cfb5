// What is looked at. It lives in the address's hash, so a link shows what its sender saw.

import { page } from "./data.js";
import { layers } from "./attention.js";
import { link, reading, rowsOf, summed, unitsOf } from "./groups.js";

const listeners = [];
let previewed = null; // what the pointer is over; drawn, not kept

/** Every head of the chosen kind of attention: [layer, head] as places in `layers`. */
export function everyHead(kind = state.kind) {
  return layers.flatMap((layer, l) =>
    layer.said.kind === kind ? layer.said.heads.map((_, h) => [l, h]) : []);
}

export const first = opened();
export const state = { ...first };

function opened() {
  const open = page.open;
  const kind = open.kind;
  const at = layers.findIndex((layer) => layer.said.kind === kind && layer.said.number === open.layer);
  const l = Math.max(0, at);
  const head = Math.max(0, layers[l].said.heads.indexOf(open.head));
  return {
    kind,
    from: open.from ?? [layers[l].said.offset],
    to: open.to ?? [0],
    heads: [[l, head]],
    how: "mean", // of several heads: mean or max
    list: "best", // the ranking: each word in its best head, or in the chosen ones
    direction: open.direction ?? "reads",
    measure: "lift",
    unit: "word",
    scale: "root",
    bare: false,
    sort: "model", // the order of heads
    cells: "link", // what a head's cell shows
    mass: 70,
    pool: "max",
    zoom: null, // of the matrix: first and past row, first and past key
  };
}

/** What is drawn: the state, or what the pointer previews. */
export function shown() {
  return previewed ? { ...state, ...previewed } : state;
}

export function isPreview() {
  return previewed !== null;
}

export function onChange(listener) {
  listeners.push(listener);
}

let due = 0;
let changed = new Set();

function announce(names) {
  names.forEach((name) => changed.add(name));
  if (!due) due = requestAnimationFrame(flush);
}

/** Have what has changed drawn, in the next frame or at once. */
export function flush() {
  cancelAnimationFrame(due);
  const now = changed;
  due = 0;
  changed = new Set();
  current = null;
  for (const listener of listeners) listener(now);
}

/** Change what is looked at, and keep it. */
export function update(change) {
  previewed = null;
  Object.assign(state, change);
  announce(Object.keys(change));
  keep();
}

/** Show something for as long as the pointer is there; null ends it. */
export function preview(change) {
  if (!change && !previewed) return;
  previewed = change;
  announce(["preview"]);
}

// ------------------------------------------------------------------------------- the address

const LISTS = ["from", "to", "zoom"];
const NAMED = ["kind", "how", "list", "direction", "measure", "unit", "scale", "sort", "cells", "pool"];

/** The state as a hash: only what differs from how the page opens. */
export function hash() {
  const parts = [];
  for (const name of LISTS)
    if (String(state[name]) !== String(first[name])) parts.push(`${name}=${(state[name] ?? []).join(",")}`);
  const heads = state.heads.map(([l, h]) => layers[l].label(h)).join(",");
  if (heads !== first.heads.map(([l, h]) => layers[l].label(h)).join(",")) parts.push(`heads=${heads}`);
  for (const name of NAMED) if (state[name] !== first[name]) parts.push(`${name}=${state[name]}`);
  if (state.bare) parts.push("bare=1");
  if (state.mass !== first.mass) parts.push(`mass=${state.mass}`);
  return parts.join("&");
}

function keep() {
  try {
    history.replaceState(null, "", `#${hash()}`);
  } catch {
    // an isolated frame has no address of its own
  }
}

/** Read a hash; what makes no sense is left as it is. */
export function readHash(text) {
  const given = new URLSearchParams(text.replace(/^#/, ""));
  const kind = layers.find((layer) => layer.said.kind === given.get("kind"))?.said.kind ?? first.kind;
  const change = kind === first.kind ? { ...first } : startOf(kind);
  const [rows, keys] = textsOf(change.kind).map((name) => page.texts[name].labels.length);
  const numbers = (name, most) => {
    const found = (given.get(name) ?? "").split(",").filter((n) => /^\d+$/.test(n)).map(Number);
    return found.length && found.every((n) => n < most) ? found : null;
  };
  change.from = numbers("from", rows) ?? change.from;
  change.to = numbers("to", keys) ?? change.to;
  const zoom = numbers("zoom", Math.max(rows, keys) + 1);
  if (zoom?.length === 4 && zoom[0] < zoom[1] && zoom[2] < zoom[3]) change.zoom = zoom;
  const named = everyHead(change.kind).map(([l, h]) => [layers[l].label(h), [l, h]]);
  const wanted = (given.get("heads") ?? "").split(",");
  const heads = named.filter(([name]) => wanted.includes(name)).map(([, head]) => head);
  if (heads.length) change.heads = heads;
  for (const name of NAMED.slice(1)) if (/^[a-z_]+$/.test(given.get(name) ?? "")) change[name] = given.get(name);
  change.bare = given.get("bare") === "1";
  const mass = Number(given.get("mass") ?? NaN);
  if (mass >= 1 && mass <= 100) change.mass = mass;
  for (const name of Object.keys(CHOICES)) if (!CHOICES[name].includes(change[name])) change[name] = first[name];
  update(change);
}

const CHOICES = {
  how: ["mean", "max"],
  list: ["best", "heads"],
  direction: ["reads", "read_by"],
  measure: ["lift", "weight", "contribution"],
  unit: ["word", "token"],
  scale: ["root", "linear", "log"],
  sort: ["model", "link", ...Object.keys(page.measured)],
  cells: ["link", "maps"],
  pool: ["max", "mean"],
};

// ---------------------------------------------------------------------- what follows from it

/** The texts of rows and of keys. */
export function textsOf(kind) {
  const { said } = layers.find((layer) => layer.said.kind === kind);
  return [said.rows, said.keys];
}

let current = null;

/** What all drawings need of what is shown now; computed once a change. */
export function seen() {
  if (!current) {
    const now = shown();
    const [rowText, keyText] = textsOf(now.kind);
    const readers = unitsOf(rowText, now.unit), read = unitsOf(keyText, now.unit);
    current = { ...now, rowText, keyText, readers, read, same: rowText === keyText };
    current.units = now.direction === "reads" ? read : readers;
    current.pinned = now.direction === "reads" ? now.from : now.to;
    current.picked = now.direction === "reads" ? now.to : now.from;
  }
  return current;
}

const NAMES = ["weight", "baseline", "distance", "contribution", "lift"];
const nothing = () => ({ weight: NaN, baseline: NaN, distance: NaN, contribution: NaN, lift: NaN, allowed: false, head: null });

const known = new Map(); // what was asked last: a hover asks the same more than once

/** How the pinned word and each other one are linked in some heads: a row for each unit. */
export function linksIn(now, heads, how) {
  const asked = [now.direction, now.direction === "reads" ? now.from : now.to, now.kind, now.unit, now.bare, now.measure, how, heads.join(";")].join(" ");
  if (!known.has(asked)) {
    if (known.size > 6) known.clear();
    known.set(asked, compared(now, heads, how));
  }
  return known.get(asked);
}

function compared(now, heads, how) {
  const out = now.units.map(nothing), one = nothing();
  heads.forEach((head, turn) => {
    const [l, h] = head, layer = layers[l];
    const lengths = now.measure === "contribution" ? layer.lengths(h) : null;
    const rows = now.direction === "reads" ? rowsOf(layer, now.from) : null;
    if (rows && !rows.length) return;
    const read = rows && reading(layer, h, rows, now.bare, true);
    for (let n = 0; n < out.length; n++) {
      const { positions } = now.units[n];
      const found = read ? summed(read, positions, lengths, one) : readBy(now, layer, h, positions);
      if (!found) continue;
      if (how === "max" || heads.length === 1) keepBest(out[n], found, head, now.measure);
      else add(out[n], found, heads.length, turn);
    }
  });
  if (how !== "max" && heads.length > 1) for (const sum of out) sum.lift = sum.allowed ? sum.weight - Math.max(sum.baseline, sum.distance) : NaN;
  return out;
}

function readBy(now, layer, h, positions) {
  const rows = rowsOf(layer, positions);
  return rows.length ? link(layer, h, rows, now.to, now.bare, now.measure === "contribution") : null;
}

function keepBest(best, one, head, measure) {
  if (best.head && !(one[measure] > best[measure]) && !(Number.isNaN(best[measure]) && !Number.isNaN(one[measure]))) return;
  for (const name of NAMES) best[name] = one[name];
  best.allowed = one.allowed;
  best.head = head;
}

function add(sum, one, count, turn) {
  for (const name of NAMES) sum[name] = (turn ? sum[name] : 0) + one[name] / count;
  sum.allowed ||= one.allowed;
}

/** The link of the chosen words in one head. */
export function linkIn(now, [l, h]) {
  return { ...link(layers[l], h, rowsOf(layers[l], now.from), now.to, now.bare, now.measure === "contribution"), head: [l, h] };
}

/** The link of the chosen words in the chosen heads. */
export function chosenLink(now) {
  const out = nothing();
  now.heads.forEach((head, turn) => {
    const one = linkIn(now, head);
    if (now.how === "max" || now.heads.length === 1) keepBest(out, one, head, now.measure);
    else add(out, one, now.heads.length, turn);
  });
  if (now.how !== "max" && now.heads.length > 1) out.lift = out.allowed ? out.weight - Math.max(out.baseline, out.distance) : NaN;
  return out;
}

/** Units that may stand in a ranking: neither special nor part of what is pinned. */
export function ranked(now, links) {
  const own = new Set(now.pinned);
  const value = (n) => links[n][now.measure];
  return now.units
    .filter((unit) => {
      const never = now.direction === "reads" ? unit.never : unit.special;
      const itself = now.same && unit.positions.some((p) => own.has(p));
      return !never && !itself && links[unit.number].allowed !== false && Number.isFinite(value(unit.number));
    })
    .sort((a, b) => value(b.number) - value(a.number) || a.number - b.number);
}

/** Pin a word: with what it reads best, in its best head or in those that are chosen. */
export function pinning(positions, base = state) {
  const name = base.direction === "reads" ? "from" : "to";
  const other = base.direction === "reads" ? "to" : "from";
  const change = { [name]: positions };
  const now = { ...base, ...change };
  const [rowText, keyText] = textsOf(now.kind);
  now.same = rowText === keyText;
  now.units = unitsOf(now.direction === "reads" ? keyText : rowText, now.unit);
  now.pinned = positions;
  const best = now.list === "best";
  const links = linksIn(now, best ? everyHead(now.kind) : now.heads, best ? "max" : now.how);
  const [top] = ranked(now, links);
  if (top) {
    change[other] = top.positions;
    if (best) change.heads = [links[top.number].head];
  }
  return change;
}

/** What another kind of attention begins with: its last token that has something to read. */
export function startOf(kind) {
  const [head] = everyHead(kind);
  const { offset } = layers[head[0]].said;
  const base = { ...first, kind, heads: [head], direction: "reads" };
  for (let p = offset + layers[head[0]].rows - 1; p >= offset; p--) { // the first ones see little
    const change = pinning([p], base);
    if (change.to) return { ...base, ...change };
  }
  return { ...base, from: [offset], to: [0] };
}
