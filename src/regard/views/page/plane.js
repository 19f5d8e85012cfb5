// A head's matrix in cells: as many as can be seen, each the mean or the largest of its pairs.

import { layers } from "./attention.js";

/** What is looked at: rows r0 ≤ row < r1 and keys k0 ≤ key < k1 in so many cells. */
export function frameOf(now, most) {
  const layer = layers[now.heads[0][0]];
  const [r0, r1, k0, k1] = now.zoom ?? [0, layer.rows, 0, layer.keys];
  const zoom = [Math.min(r0, layer.rows - 1), Math.min(r1, layer.rows), Math.min(k0, layer.keys - 1), Math.min(k1, layer.keys)];
  const [rows, keys] = [zoom[1] - zoom[0], zoom[3] - zoom[2]];
  return { zoom, rows, keys, down: Math.min(rows, most), across: Math.min(keys, most) };
}

/** Fill the cells, a few rows at a time; `done` is told which rows of cells are new. */
export function pool(now, frame, done, slice) {
  const { zoom: [r0, , k0, k1], rows, keys, down, across } = frame;
  const cells = new Float64Array(down * across).fill(NaN);
  const count = new Uint32Array(down * across);
  const line = new Float64Array(keys);
  const cellOf = Uint32Array.from({ length: keys }, (_, k) => Math.floor((k * across) / keys));
  const lifts = now.measure === "lift";
  let row = 0, stopped = false;
  const work = () => {
    if (stopped) return;
    const until = performance.now() + slice, first = Math.floor((row * down) / rows);
    while (row < rows && performance.now() < until) {
      const at = Math.floor((row * down) / rows) * across;
      combined(now, r0 + row, k0, k1, line, lifts);
      for (let k = 0; k < keys; k++) {
        const value = line[k];
        if (Number.isNaN(value)) continue;
        const cell = at + cellOf[k];
        count[cell] += 1;
        if (count[cell] === 1) cells[cell] = value;
        else if (now.pool === "mean") cells[cell] += (value - cells[cell]) / count[cell];
        else if (Math.abs(value) > Math.abs(cells[cell])) cells[cell] = value; // a spike of either sign
      }
      row += 1;
    }
    done(cells, first, Math.floor(((row - 1) * down) / rows) + 1);
    if (row < rows) setTimeout(work);
  };
  work();
  return () => (stopped = true);
}

const scratch = new Map();

/** A row of the chosen heads, their mean or their largest; NaN where none may attend. */
function combined(now, row, k0, k1, out, lifts) {
  const several = now.heads.length > 1;
  out.fill(several ? NaN : 0);
  const size = k1 - k0;
  if (!scratch.has(size)) { scratch.clear(); scratch.set(size, new Float64Array(size)); }
  const one = several ? scratch.get(size) : out;
  for (const [l, h] of now.heads) {
    const layer = layers[l];
    if (row >= layer.rows) continue;
    layer.fill(h, row, now.bare, one, k0, k1);
    if (lifts) lift(layer, h, row, k0, one, now.bare);
    else if (now.measure === "contribution") {
      const lengths = layer.lengths(h);
      for (let k = 0; k < size; k++) one[k] *= lengths[k0 + k];
    }
    if (!several) return;
    for (let k = 0; k < size; k++) {
      if (Number.isNaN(one[k])) continue;
      if (now.how === "mean") out[k] = (Number.isNaN(out[k]) ? 0 : out[k]) + one[k] / now.heads.length;
      else if (!(out[k] >= one[k])) out[k] = one[k];
    }
  }
}

/** Turn weights of a row into what they are beyond the others'; 0 where nothing compares. */
function lift(layer, h, row, k0, line, bare) {
  const sums = layer.sums(bare), { keys, rows } = layer;
  const at = h * keys, far = h * (rows + keys - 1);
  for (let k = 0; k < line.length; k++) {
    const w = line[k], key = k0 + k;
    if (Number.isNaN(w)) continue;
    const place = key - row + rows - 1;
    const seen = sums.seen[(sums.headed.seen ? at : 0) + key] - 1;
    const met = sums.met[(sums.headed.met ? far : 0) + place] - 1;
    const baseline = seen > 0 ? Math.max(0, sums.received[at + key] - w) / seen : NaN;
    const distance = !layer.said.distances ? -Infinity : met > 0 ? Math.max(0, sums.along[far + place] - w) / met : NaN;
    const reference = Math.max(baseline, distance);
    line[k] = Number.isNaN(reference) ? 0 : w - reference;
  }
}
