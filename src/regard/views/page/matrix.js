// The matrix of the chosen heads: from the whole text down to a cell, with a part added up.

import { byId, make, widest } from "./dom.js";
import { link, rowsOf } from "./groups.js";
import { isPreview, seen, state, update } from "./state.js";
import { choice } from "./controls.js";
import { layers } from "./attention.js";
import { frameOf, pool } from "./plane.js";
import { labelOf } from "./groups.js";
import { ground, scaled, shade } from "./palette.js";
import { exact, points, quoted } from "./say.js";

const SLICE = 12; // milliseconds of work between two frames
const LABELLED = 11; // pixels a cell, from which on tokens stand beside it
const MARGIN = 26;
const WIDE = 110; // the most that names take
const LARGEST = 40; // pixels a cell
const END = 14; // so that the last tick is not cut off

let canvas = null, stop = null, held = null, drag = null, cursor = null, anchor = null, drawn = "";

/** Draw it, a few rows at a time, or at once. */
export function drawMatrix(whole = false) {
  const now = seen();
  if (!canvas) build();
  const name = [now.kind, now.heads.join(";"), now.how, now.measure, now.scale, now.bare, now.pool, now.zoom, ground(), byId("plane").clientWidth].join(" ");
  if (name === drawn && held && !whole) return paint();
  drawn = name;
  stop?.();
  held = { now: { ...now }, ...layout(now) };
  stop = pool(now, held.frame, (cells, first, past) => {
    colour(held, cells, first, past);
    paint();
  }, whole ? Infinity : SLICE);
}

function build() {
  canvas = make("canvas", { tabIndex: 0, id: "cells" });
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "Matrix of weights: arrows move, Enter pins, plus and minus zoom, 0 shows all");
  byId("plane").append(canvas, make("p", { id: "cell", class: "dimension", ariaLive: "polite" }, "\u00a0"));
  byId("matrix-controls").append(
    choice("Pooling", "pool", [["max", "max", "A cell of many pairs shows the largest"], ["mean", "mean", "A cell of many pairs shows their mean"]]),
    make("button", { onclick: () => zoomTo(chosenPart()), title: "Zoom to what is chosen" }, "to the selection"),
    make("button", { onclick: () => zoomBy(0.5), ariaLabel: "Closer", title: "Closer (+)" }, "+"),
    make("button", { onclick: () => zoomBy(2), ariaLabel: "Farther", title: "Farther (−)" }, "−"),
    make("button", { onclick: () => update({ zoom: null }), title: "The whole (0)" }, "all"));
  listen();
  new ResizeObserver(() => { if (byId("plane").clientWidth && !isPreview()) drawMatrix(); }).observe(byId("plane"));
}

/** Sizes in pixels of the screen's own. */
function layout(now) {
  const ratio = window.devicePixelRatio || 1;
  const box = byId("plane").clientWidth || 300;
  const most = Math.min(box - END, 660);
  const frame = frameOf(now, Math.floor((most - MARGIN) * ratio));
  const longest = Math.max(frame.rows, frame.keys);
  const names = longest * LABELLED < most ? Math.min(WIDE, Math.ceil(widest(namesOf(now, frame), 12)) + 12) : WIDE;
  let cell = Math.min((most - names) / longest, LARGEST);
  const labelled = cell >= LABELLED;
  if (!labelled) cell = (most - MARGIN) / longest;
  const margin = labelled ? names : MARGIN;
  const [wide, tall] = [cell * frame.keys, cell * frame.rows];
  canvas.width = Math.round((wide + margin + END) * ratio);
  canvas.height = Math.round((tall + margin + 3) * ratio); // the frame of a cell of the last row too
  canvas.style.inlineSize = `${canvas.width / ratio}px`;
  canvas.style.blockSize = `${canvas.height / ratio}px`;
  Object.assign(canvas.dataset, { cell, margin });
  const image = new ImageData(Math.max(1, Math.round(wide * ratio)), Math.max(1, Math.round(tall * ratio)));
  return { frame, ratio, cell, margin, labelled, wide, tall, image };
}

/** A token's name and position; a name that is the position stands alone. */
function beside(text, p, first = false) {
  const letters = [...labelOf(text, [p], "token")];
  const name = letters.length > 12 ? `${letters.slice(0, 11).join("")}…` : letters.join("");
  if (name === String(p)) return name;
  return first ? `${p} ${name}` : `${name} ${p}`;
}

/** The names beside the cells. */
function namesOf(now, { zoom }) {
  const { offset } = layers[now.heads[0][0]].said;
  const of = (text, first, past) => Array.from({ length: past - first }, (_, n) => beside(text, first + n));
  return [...of(now.rowText, zoom[0] + offset, zoom[1] + offset), ...of(now.keyText, zoom[2], zoom[3])];
}

/** Some rows of cells, a pixel of the screen at a time: what may not be attended is hatched. */
function colour({ now, frame: { down, across }, ratio, image, cell }, cells, first, past) {
  let largest = 1;
  if (now.measure === "contribution") {
    if (past < down) return; // which is the largest is known at the end
    largest = cells.reduce((most, x) => Math.max(most, Math.abs(x) || 0), 1e-12);
    first = 0;
  }
  const { width, height } = image;
  const pixels = new Uint32Array(image.data.buffer);
  const packed = Uint32Array.from({ length: 201 }, (_, n) => pack(shade(n / 100 - 1)[0]));
  const dark = ground() === "dark";
  const hatch = [pack(dark ? "#2a2d33" : "#e9e8e4"), pack(dark ? "#1d2025" : "#f6f5f2")];
  const place = Uint32Array.from({ length: width }, (_, x) => Math.floor((x * across) / width));
  const colours = new Uint32Array(across);
  let row = -1;
  for (let y = Math.ceil((first * height) / down); y < height; y++) {
    const own = Math.floor((y * down) / height);
    if (own >= past) break;
    for (let k = 0; own !== row && k < across; k++) {
      const value = cells[own * across + k] / largest;
      colours[k] = Number.isNaN(value) ? 0 : packed[Math.round(100 * (Math.max(-1, Math.min(1, scaled(value, now.scale))) + 1))];
    }
    row = own;
    for (let x = 0, at = y * width; x < width; x++, at++)
      pixels[at] = colours[place[x]] || hatch[((x + y) >> (ratio > 1 ? 2 : 1)) & 1];
  }
  if (cell >= 8) grid(image, down, across, Math.max(1, Math.round(ratio)), pack(dark ? "#24272d" : "#ffffff"));
}

function grid({ width: w, height: h, data }, down, across, gap, paper) {
  const pixels = new Uint32Array(data.buffer);
  for (let c = 0; c <= across; c++) {
    const x = Math.round((c * w) / across);
    for (let g = 0; g < gap; g++) if (x + g < w) for (let y = 0; y < h; y++) pixels[y * w + x + g] = paper;
  }
  for (let c = 0; c <= down; c++) {
    const y = Math.round((c * h) / down);
    for (let g = 0; g < gap; g++) if (y + g < h) pixels.fill(paper, (y + g) * w, (y + g + 1) * w);
  }
}

function pack(colour) {
  const n = parseInt(colour.slice(1), 16);
  return (255 << 24 | (n & 255) << 16 | (n & 0xff00) | n >> 16) >>> 0;
}

function paint() {
  const { ratio, margin, cell, image, labelled } = held;
  const now = seen();
  const brush = canvas.getContext("2d");
  brush.setTransform(1, 0, 0, 1, 0, 0);
  brush.clearRect(0, 0, canvas.width, canvas.height);
  brush.putImageData(image, Math.round(margin * ratio), Math.round(margin * ratio));
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  const style = getComputedStyle(document.documentElement);
  const [text, quiet, paper] = ["--text", "--quiet", "--ground"].map((name) => style.getPropertyValue(name));
  brush.font = `${Math.min(12, Math.max(9, cell * 0.72))}px ${getComputedStyle(document.body).fontFamily}`;
  brush.fillStyle = quiet;
  if (labelled) names(brush, now, text, quiet);
  else ticks(brush);
  pale(brush, now, paper);
  outline(brush, now, text);
}

function names(brush, now, text, quiet) {
  const { frame, cell, margin } = held;
  const layer = layers[now.heads[0][0]];
  brush.textBaseline = "middle";
  for (let r = 0; r < frame.rows; r++) {
    const p = frame.zoom[0] + r + layer.said.offset;
    brush.fillStyle = now.from.includes(p) ? text : quiet;
    brush.textAlign = "end";
    brush.fillText(beside(now.rowText, p), margin - 6, margin + (r + 0.5) * cell, margin - 8);
  }
  for (let k = 0; k < frame.keys; k++) {
    const p = frame.zoom[2] + k;
    brush.fillStyle = now.to.includes(p) ? text : quiet;
    brush.save();
    brush.translate(margin + (k + 0.5) * cell, margin - 6);
    brush.rotate(-Math.PI / 2);
    brush.textAlign = "start";
    brush.fillText(beside(now.keyText, p, true), 0, 0, margin - 8);
    brush.restore();
  }
}

function ticks(brush) {
  const { frame, cell, margin } = held;
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 5e4].find((n) => n * cell >= 46) ?? 1e5;
  brush.font = "10px sans-serif";
  for (let k = Math.ceil(frame.zoom[2] / step) * step; k < frame.zoom[3]; k += step) {
    brush.textAlign = "start";
    brush.textBaseline = "alphabetic";
    brush.fillText(String(k), margin + (k - frame.zoom[2]) * cell, margin - 6);
  }
  for (let r = Math.ceil(frame.zoom[0] / step) * step; r < frame.zoom[1]; r += step) {
    brush.save();
    brush.translate(margin - 6, margin + (r - frame.zoom[0]) * cell);
    brush.rotate(-Math.PI / 2);
    brush.textAlign = "end";
    brush.textBaseline = "alphabetic";
    brush.fillText(String(r), 0, 0);
    brush.restore();
  }
}

/** What is chosen, as a box in pixels: the rows that read and the keys that are read. */
function boxOf(rows, keys) {
  const { frame, cell, margin } = held;
  const [r0, r1, k0, k1] = [Math.min(...rows), Math.max(...rows) + 1, Math.min(...keys), Math.max(...keys) + 1];
  return [margin + (k0 - frame.zoom[2]) * cell, margin + (r0 - frame.zoom[0]) * cell, (k1 - k0) * cell, (r1 - r0) * cell];
}

function chosenRows(now) {
  return rowsOf(layers[now.heads[0][0]], now.from);
}

/** What is being marked: the ranges of a drag, or from where Shift and arrows began. */
function marked() {
  if (drag) return drag.ranges;
  return anchor && cursor ? [[anchor[0], cursor[0]], [anchor[1], cursor[1]]] : null;
}

function pale(brush, now, paper) {
  const ranges = marked();
  if (!ranges && now.from.length * now.to.length < 4) return;
  const [x, y, w, h] = boxOf(...(ranges ?? [chosenRows(now), now.to]));
  const { margin, wide, tall } = held;
  brush.save();
  brush.beginPath();
  brush.rect(margin, margin, wide, tall);
  brush.clip();
  brush.beginPath();
  brush.rect(margin, margin, wide, tall);
  brush.rect(x, y, w, h);
  brush.globalAlpha = 0.6;
  brush.fillStyle = paper;
  brush.fill("evenodd");
  brush.restore();
}

function outline(brush, now, text) {
  const rows = chosenRows(now);
  if (!rows.length) return;
  const [x, y, w, h] = boxOf(...(marked() ?? [rows, now.to]));
  const { margin, wide, tall } = held;
  brush.save();
  brush.beginPath();
  brush.rect(margin - 2, margin - 2, wide + 4, tall + 4);
  brush.clip();
  brush.strokeStyle = text;
  brush.lineWidth = 2;
  const least = Math.max(0, 7 - w) / 2;
  brush.strokeRect(x - 1 - least, y - 1 - least, w + 2 + 2 * least, h + 2 + 2 * least);
  if (cursor) {
    brush.lineWidth = 1;
    const [cx, cy, cw, ch] = boxOf([cursor[0]], [cursor[1]]);
    brush.strokeRect(cx, cy, Math.max(cw, 3), Math.max(ch, 3));
  }
  brush.restore();
}

// ------------------------------------------------------------------------------- the hand

function at(event) {
  const box = canvas.getBoundingClientRect();
  const { frame, cell, margin } = held;
  const row = frame.zoom[0] + Math.floor((event.clientY - box.top - margin) / cell);
  const key = frame.zoom[2] + Math.floor((event.clientX - box.left - margin) / cell);
  return row >= frame.zoom[0] && row < frame.zoom[1] && key >= frame.zoom[2] && key < frame.zoom[3] ? [row, key] : null;
}

function listen() {
  canvas.addEventListener("pointermove", (event) => {
    const cell = at(event);
    if (drag && cell) {
      drag.ranges = [[drag.from[0], cell[0]], [drag.from[1], cell[1]]];
      drag.moved ||= cell.join() !== drag.from.join();
    }
    cursor = cell;
    if (cell) say(cell);
    paint();
  });
  canvas.addEventListener("pointerleave", () => { cursor = anchor = null; paint(); });
  canvas.addEventListener("pointerdown", (event) => {
    const cell = at(event);
    if (!cell || event.button) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { from: cell, ranges: [[cell[0], cell[0]], [cell[1], cell[1]]] };
  });
  canvas.addEventListener("pointerup", () => {
    if (!drag) return;
    const [rows, keys] = drag.ranges;
    drag = null;
    pin(rows, keys);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; paint(); });
  canvas.addEventListener("dblclick", (event) => zoomBy(0.5, at(event)));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomBy(event.deltaY > 0 ? 1.25 : 0.8, at(event));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (step) move(step, event.shiftKey);
    else if (event.key === "Enter" && cursor) pin(...(marked() ?? [[cursor[0], cursor[0]], [cursor[1], cursor[1]]]));
    else if (event.key === "+" || event.key === "=") zoomBy(0.5, cursor);
    else if (event.key === "-") zoomBy(2, cursor);
    else if (event.key === "0") update({ zoom: null });
    else return;
    event.preventDefault();
  });
}

function move([down, right], marks) {
  const now = seen(), layer = layers[now.heads[0][0]];
  const [row, key] = cursor ?? [chosenRows(now)[0] ?? 0, now.to[0]];
  anchor = marks ? anchor ?? [row, key] : null;
  const { zoom } = held.frame;
  cursor = [Math.max(zoom[0], Math.min(zoom[1] - 1, row + down)), Math.max(zoom[2], Math.min(zoom[3] - 1, key + right))];
  cursor = [Math.min(cursor[0], layer.rows - 1), Math.min(cursor[1], layer.keys - 1)];
  say(cursor);
  paint();
}

const span = ([a, b]) => Array.from({ length: Math.abs(b - a) + 1 }, (_, n) => Math.min(a, b) + n);

function pin(rows, keys) {
  const { offset } = layers[seen().heads[0][0]].said;
  anchor = null;
  update({ from: span(rows).map((row) => row + offset), to: span(keys), list: "heads" });
}

function say([row, key]) {
  const now = seen();
  const [l, h] = now.heads[0], layer = layers[l];
  const one = link(layer, h, [row], [key], now.bare);
  const from = quoted(labelOf(now.rowText, [row + layer.said.offset], "token")), to = quoted(labelOf(now.keyText, [key], "token"));
  const more = now.heads.length > 1 ? ` in ${layer.label(h)}` : "";
  byId("cell").textContent = one.allowed
    ? `${from} ${row + layer.said.offset} → ${to} ${key}${more}: ${exact(one.weight)}, others ${exact(one.baseline)}, as far ${exact(one.distance)}, lift ${points(one.lift)}`
    : `${from} ${row + layer.said.offset} → ${to} ${key}: may not attend`;
}

// ------------------------------------------------------------------------------- zoom

function chosenPart() {
  const now = seen(), rows = chosenRows(now), { keys } = layers[now.heads[0][0]];
  const about = (positions, most) => {
    const [a, b] = [Math.min(...positions), Math.max(...positions) + 1];
    const more = Math.max(0, Math.ceil((16 - (b - a)) / 2));
    return [Math.max(0, a - more), Math.min(most, b + more)];
  };
  return [...about(rows.length ? rows : [0], layers[now.heads[0][0]].rows), ...about(now.to, keys)];
}

function zoomTo(zoom) {
  update({ zoom });
}

function zoomBy(factor, about = null) {
  const now = seen(), layer = layers[now.heads[0][0]];
  const [row, key] = about ?? [chosenRows(now)[0] ?? 0, now.to[0]];
  const part = (a, b, middle, most) => {
    const size = Math.max(2, Math.min(most, Math.round((b - a) * factor)));
    const share = (middle + 0.5 - a) / (b - a);
    const begin = Math.round(Math.max(0, Math.min(most - size, middle + 0.5 - share * size)));
    return [begin, begin + size];
  };
  const [r0, r1, k0, k1] = held.frame.zoom;
  const inside = row >= r0 && row < r1 && key >= k0 && key < k1;
  const [mr, mk] = inside ? [row, key] : [(r0 + r1) / 2, (k0 + k1) / 2];
  const zoom = [...part(r0, r1, mr, layer.rows), ...part(k0, k1, mk, layer.keys)];
  const whole = zoom[1] - zoom[0] === layer.rows && zoom[3] - zoom[2] === layer.keys;
  if (String(zoom) !== String(state.zoom)) update({ zoom: whole ? null : zoom });
}
