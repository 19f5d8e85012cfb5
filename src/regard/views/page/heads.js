// Every head at a glance: what each gives the chosen link, or a thumbnail of all it does.

import { array, page } from "./data.js";
import { byId, make, nextByArrow, rove } from "./dom.js";
import { everyHead, isPreview, linkIn, preview, seen, state, update } from "./state.js";
import { layers } from "./attention.js";
import { labelOf } from "./groups.js";
import { FAINT, scaled, shade } from "./palette.js";
import { exact, number, percent, points, quoted } from "./say.js";

const MANY = 24; // heads a layer that have room side by side
let cells = new Map(); // "l h" -> its button
let built = "";

const key = ([l, h]) => `${l} ${h}`;
const measures = new Map(page.measures.map((row) => [`${row.layer}.${row.head}`, row]));

export const hasMeasures = measures.size > 0;
export const hasMaps = page.layers.some((said) => said.map);

export function drawHeads() {
  const now = seen();
  const heads = everyHead(now.kind);
  const links = new Map(heads.map((head) => [key(head), linkIn(now, head)]));
  const value = (head) => measured(now, head, links.get(key(head)));
  const order = now.sort === "model" ? heads
    : [...heads].sort((a, b) => (value(b) || 0) - (value(a) || 0) || a[0] - b[0] || a[1] - b[1]);
  const name = `${now.kind} ${now.sort} ${now.cells} ${now.sort === "model" ? "" : order.map(key)}`;
  if (built !== name) build(now, order);
  built = name;
  const largest = Math.max(1e-12, ...heads.map((head) => Math.abs(value(head)) || 0));
  for (const head of heads) paint(now, head, links.get(key(head)), value(head), largest);
  const from = quoted(labelOf(now.rowText, now.from, now.unit)), to = quoted(labelOf(now.keyText, now.to, now.unit));
  byId("heads-title").textContent = `Find the head: ${from} → ${to}`;
  const own = new Set(now.heads.map(key));
  const at = order.findIndex((head) => own.has(key(head)));
  if (!byId("grid").contains(document.activeElement)) rove([...cells.values()], Math.max(0, at));
  byId("head-note").textContent = note(now, now.heads[0], links.get(key(now.heads[0])));
}

function measured(now, [l, h], one) {
  if (now.sort === "model" || now.sort === "link") return one[now.measure];
  const layer = layers[l];
  return measures.get(layer.label(h))?.[now.sort] ?? NaN;
}

function note(now, [l, h], one) {
  const layer = layers[l], { said } = layer;
  const parts = [layer.called(h), `weight ${exact(one.weight)}, others ${exact(one.baseline)}`];
  const row = measures.get(layer.label(h));
  if (row && now.kind === page.open.kind) parts.push(`selectivity ${number(row.selectivity ?? NaN, 2)}, special tokens ${percent(row.special ?? NaN)}, the token before ${percent(row.previous ?? NaN)}`);
  if (layer.each > 1) parts.push(`key head ${Math.floor(h / layer.each)} serves ${layer.each} query heads`);
  if (said.softcap) parts.push(`scores capped at ${said.softcap}`);
  if (said.check) parts.push(said.check);
  return `${parts.join(" · ")}.`;
}

function build(now, order) {
  cells = new Map();
  const grid = byId("grid");
  const wide = Math.max(...order.map(([l]) => layers[l].count));
  const box = make("div", { class: `heads ${now.sort === "model" ? "by-layer" : "in-order"} ${now.cells}${wide > MANY ? " many" : ""}`, role: "group" });
  box.setAttribute("aria-label", "Heads");
  if (now.sort === "model") {
    const { heads } = layers[order[0][0]].said;
    box.append(make("div", { class: "row names" }, make("span"), ...Array.from({ length: wide }, (_, h) =>
      make("span", {}, wide > MANY && h % 5 ? "" : String(heads.length === wide ? heads[h] : h)))));
    for (const l of new Set(order.map(([number]) => number))) box.append(layerRow(l));
  } else order.forEach((head) => box.append(cell(head, true)));
  grid.replaceChildren(box);
  listen(box);
  if (wide <= MANY || now.sort !== "model") return;
  const own = cells.get(key(now.heads[0])); // of many heads the chosen one is scrolled to
  box.scrollLeft = own.offsetLeft - box.offsetLeft - box.clientWidth / 2;
}

function layerRow(l) {
  const layer = layers[l];
  const alone = layer.said.kind === "call";
  const title = alone ? "All heads" : `All heads of layer ${layer.said.number}`;
  const name = make("button", { class: "plain layer", title,
    onclick: () => update({ heads: layer.said.heads.map((_, h) => [l, h]), list: "heads" }) }, alone ? "all" : String(layer.said.number));
  name.setAttribute("aria-label", alone ? "all heads" : title);
  const row = make("div", { class: "row" }, name);
  layer.said.heads.forEach((_, h) => {
    const one = cell([l, h], false);
    // Heads that share a key head stand together.
    if (layer.each > 1 && h % layer.each === 0) one.classList.add("begins");
    row.append(one);
  });
  return row;
}

function cell([l, h], named) {
  const layer = layers[l];
  const button = make("button", { class: "cell", data: { l, h } });
  if (layer.said.map && seen().cells === "maps") button.append(thumbnail(layer, h));
  if (named) button.append(make("span", { class: "label" }, layer.label(h)));
  cells.set(key([l, h]), button);
  return button;
}

/** The largest weight in each part of a head's matrix. */
function thumbnail(layer, h) {
  const [, rows, keys] = layer.said.map.shape;
  const map = array(layer.said.map);
  const canvas = make("canvas", { width: keys, height: rows });
  canvas.setAttribute("aria-hidden", "true");
  const brush = canvas.getContext("2d");
  const image = brush.createImageData(keys, rows);
  for (let n = 0; n < rows * keys; n++) {
    const value = map[h * rows * keys + n];
    const colour = value === 255 ? null : shade(Math.sqrt(value / 254))[0];
    const parts = colour ? [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)) : [128, 128, 128];
    image.data.set([...parts, colour ? 255 : 60], 4 * n);
  }
  brush.putImageData(image, 0, 0);
  return canvas;
}

function paint(now, head, one, value, largest) {
  const button = cells.get(key(head));
  const [l, h] = head;
  const shares = now.sort !== "model" && now.sort !== "link";
  const share = shares || now.measure === "contribution" ? value / largest : value;
  const drawn = Number.isFinite(share) && one.allowed ? scaled(share, now.scale) : 0;
  const [colour, ink] = shade(Math.abs(drawn) < FAINT ? 0 : drawn);
  if (now.cells !== "maps") {
    button.style.backgroundColor = colour;
    button.style.color = ink;
  }
  button.classList.toggle("barred", !one.allowed);
  const chosen = now.heads.some((other) => key(other) === key(head));
  button.setAttribute("aria-pressed", String(chosen));
  if (isPreview()) return;
  const name = layers[l].called(h);
  const text = one.allowed
    ? `${name}: weight ${percent(one.weight)}, others ${percent(one.baseline)}, lift ${points(one.lift)}`
    : `${name}: may not attend`;
  button.setAttribute("aria-label", shares ? `${text}, ${now.sort.replace("_", " ")} ${number(value, 2)}` : text);
  button.title = button.getAttribute("aria-label");
}

// ------------------------------------------------------------------------------- the hand

function listen(box) {
  const headOf = (event) => {
    const button = event.target.closest?.(".cell");
    return button ? [Number(button.dataset.l), Number(button.dataset.h)] : null;
  };
  box.addEventListener("pointerover", (event) => {
    const head = event.pointerType === "mouse" ? headOf(event) : null;
    if (head && !event.shiftKey) preview({ heads: [head] });
  });
  box.addEventListener("pointerleave", () => preview(null));
  box.addEventListener("click", (event) => {
    const head = headOf(event);
    if (head) toggle(head, event.shiftKey || event.ctrlKey || event.metaKey);
  });
  box.addEventListener("dblclick", (event) => {
    const head = headOf(event);
    if (head) update({ heads: [head], list: "heads" });
  });
  box.addEventListener("keydown", (event) => {
    const head = headOf(event);
    if (!head) return;
    const buttons = [...cells.values()];
    const next = nextByArrow(buttons, buttons.indexOf(cells.get(key(head))), event.key, false);
    if (next >= 0) {
      event.preventDefault();
      rove(buttons, next, true);
      const { l, h } = buttons[next].dataset;
      preview({ heads: [[Number(l), Number(h)]] });
    } else if (event.key === "Escape") preview(null);
  });
  box.addEventListener("focusout", () => preview(null));
}

/** Take one head, or with Shift one more or less. */
function toggle(head, more) {
  if (!more) return update({ heads: [head], list: "heads" });
  const left = state.heads.filter((other) => key(other) !== key(head));
  const heads = left.length < state.heads.length ? left : [...state.heads, head];
  update({ heads: heads.length ? heads : [head], list: "heads" });
}
