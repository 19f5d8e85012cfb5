// Tokens twice, and a line for each weight: those that read on the left, those that are read on the
// right; one colour a head of one layer.

import { byId, make, makeSvg, widest } from "./dom.js";
import { isPreview, seen, state, update } from "./state.js";
import { layers } from "./attention.js";
import { reading, rowsOf } from "./groups.js";
import { headColour } from "./palette.js";
import { exact, where } from "./say.js";

const LINE = 24; // pixels a token
const LEAST = 0.004; // fainter lines cannot be seen
const BEYOND = 6; // tokens drawn beyond what is in sight
const TOGETHER = 40; // longer texts have the two words of the link side by side
const MANY = 200; // so many are laid out only where they are in sight
const MOST = 900; // tokens that are laid out at once; of longer texts those around the pinned one

let hovered = null; // { side, n }
let frame = null;

export function drawLines() {
  const now = seen();
  const [l] = now.heads[0];
  if (!byId("lines-controls").childElementCount) controls();
  sync(now, l);
  scene(now, l);
}

function controls() {
  const layer = make("select", { id: "lines-layer", onchange: () => update({ heads: [[Number(layer.value), 0]], list: "heads" }) });
  layer.setAttribute("aria-label", "Layer");
  const mass = make("input", { type: "range", min: 1, max: 100, id: "mass", oninput: () => update({ mass: Number(mass.value) }) });
  mass.setAttribute("aria-label", "Strongest part of each row's weight that is drawn, in percent");
  byId("lines-controls").append(layer, make("div", { class: "squares", id: "squares", role: "group", ariaLabel: "Heads" }),
    make("label", { class: "check" }, "strongest ", mass, make("output", { id: "mass-said" })));
}

function sync(now, l) {
  const select = byId("lines-layer");
  const own = layers.map((layer, n) => [layer, n]).filter(([layer]) => layer.said.kind === now.kind);
  select.replaceChildren(...own.map(([layer, n]) => make("option", { value: n, selected: n === l }, `layer ${layer.said.number}`)));
  select.hidden = own.length < 2;
  byId("mass").value = now.mass;
  byId("mass-said").textContent = `${now.mass} %`;
  // Made once a layer: a button that is replaced between two clicks would never see them as a double-click.
  const squares = byId("squares");
  if (squares.dataset.layer !== String(l)) squares.replaceChildren(...layers[l].said.heads.map((name, h, heads) => square(l, h, name, heads.length)));
  squares.dataset.layer = l;
  [...squares.children].forEach((one, h) => one.setAttribute("aria-pressed", String(on(now, l).has(h))));
}

function square(l, h, name, count) {
  const button = make("button", { class: "square", style: { backgroundColor: headColour(h, count) }, title: `head ${name}` });
  button.setAttribute("aria-label", `Head ${name}`);
  button.onclick = (event) => toggle(l, h, event.detail < 2);
  button.ondblclick = () => isolate(l, h, count);
  return button;
}

/** The chosen heads of the layer. */
function on(now, l) {
  return new Set(now.heads.filter(([other]) => other === l).map(([, h]) => h));
}

let before = new Set(); // what was chosen before the clicks that a double-click begins with

function toggle(l, h, first) {
  const chosen = on(state, l);
  if (first) before = chosen;
  const left = new Set(chosen);
  if (!left.delete(h)) left.add(h);
  choose(l, left.size ? left : chosen, h);
}

/** That head alone; where it was alone already, all of them. */
function isolate(l, h, count) {
  const alone = before.size === 1 && before.has(h);
  choose(l, alone ? Array.from({ length: count }, (_, n) => n) : [h], h);
}

function choose(l, heads, h) {
  update({ heads: [...heads].sort((a, b) => a - b).map((one) => [l, one]), list: "heads" });
  requestAnimationFrame(() => byId("squares").children[h]?.focus());
}

// ------------------------------------------------------------------------------- the drawing

function scene(now, l) {
  const box = byId("drawing");
  const left = around(now.readers, now.from), right = around(now.read, now.to);
  const width = Math.max(box.clientWidth, 240);
  const names = [...left, ...right].map((unit) => `${unit.short.slice(0, 40)} ${where(unit.positions)}`);
  const side = Math.min(12 + Math.max(40, widest(names, 14, 650)), width * 0.36);
  const gap = width - 4 - 2 * side;
  const tops = besideEachOther(left, right, now);
  const height = Math.max(left.length * LINE + tops[0], right.length * LINE + tops[1]);
  const link = `${now.from} ${now.to}`;
  const old = box.querySelector(".scroller");
  const kept = old && frame.link === link ? old.scrollTop : null;
  const scroller = make("div", { class: "scroller scrolls", tabIndex: 0, role: "region" });
  scroller.setAttribute("aria-label", "Lines between tokens");
  const svg = makeSvg("svg", { width: width - 4, height, role: "img", "aria-label": "Each line is a weight" });
  scroller.append(column(left, "left", side, now, tops[0]), column(right, "right", side, now, tops[1]), svg);
  scroller.style.setProperty("--tall", `${height}px`);
  box.style.setProperty("--wide", `${width}px`); // also on paper, which is not as wide
  box.replaceChildren(make("div", { class: "heading" }, make("span", {}, "reads"), make("span", {}, "is read")), scroller);
  frame = { now, l, left, right, svg, side, gap, scroller, tops, link, width: box.clientWidth };
  scroller.scrollTop = kept ?? Math.max(0, left.findIndex((unit) => now.from.includes(unit.positions[0])) * LINE + tops[0] - 200);
  scroller.addEventListener("scroll", () => requestAnimationFrame(lines));
  lines();
}

/** All words of a text, or of a long one those around the pinned word. */
function around(units, pinned) {
  if (units.length <= MOST) return units;
  const at = units.findIndex((unit) => unit.positions.includes(pinned[0]));
  const first = Math.max(0, Math.min(at - MOST / 2, units.length - MOST));
  return units.slice(first, first + MOST);
}

/** Where the columns begin: in a long text such that the two words of the link are side by side. */
function besideEachOther(left, right, now) {
  if (Math.max(left.length, right.length) <= TOGETHER) return [0, 0];
  const place = (units, positions) => Math.max(0, units.findIndex((unit) => unit.positions.includes(positions[0])));
  const shift = (place(left, now.from) - place(right, now.to)) * LINE;
  return [Math.max(0, -shift), Math.max(0, shift)];
}

function column(units, side, width, now, top) {
  const pinned = side === "left" ? now.from : now.to;
  const box = make("div", { class: `column ${side}${units.length > MANY ? " long" : ""}`, style: { inlineSize: `${width}px`, blockSize: `${units.length * LINE}px`, insetBlockStart: `${top}px` }, role: "listbox" });
  box.setAttribute("aria-label", side === "left" ? "Tokens that read" : "Tokens that are read");
  units.forEach((unit, n) => {
    const own = unit.positions.some((p) => pinned.includes(p));
    const place = make("small", {}, unit.named ? where(unit.positions) : ""), name = make("bdi", {}, unit.short);
    const token = make("div", { class: `token${own ? " pinned" : ""}`, role: "option", tabIndex: own && !box.querySelector("[tabindex='0']") ? 0 : -1, data: { n } },
      ...(side === "left" ? [place, name] : [name, place]), make("span", { class: "shares" }));
    token.setAttribute("aria-selected", String(own));
    box.append(token);
  });
  if (box.firstChild && !box.querySelector("[tabindex='0']")) box.firstChild.tabIndex = 0;
  const at = (event) => event.target.closest?.(".token");
  const point = (token) => { hovered = token ? { side, n: Number(token.dataset.n) } : null; lines(); };
  box.addEventListener("pointerover", (event) => point(at(event)));
  box.addEventListener("pointerleave", () => point(null));
  box.addEventListener("focusin", (event) => point(at(event)));
  box.addEventListener("focusout", () => point(null));
  const pin = (token) => {
    const { positions } = units[token.dataset.n];
    update(side === "left" ? { from: positions } : { to: positions });
  };
  box.addEventListener("click", (event) => { if (at(event)) pin(at(event)); });
  box.addEventListener("keydown", (event) => {
    const token = at(event);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pin(token); }
    if (!step) return;
    event.preventDefault();
    const next = box.children[Number(token.dataset.n) + step];
    if (next) { token.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  });
  return box;
}

/** The lines of the tokens in sight; each head's in one path for each strength. */
function lines() {
  if (!frame?.svg.isConnected) return;
  const { now, l, left, right, svg, side, gap, scroller, tops } = frame;
  const layer = layers[l], heads = layer.said.heads.length;
  const first = Math.max(0, Math.floor((scroller.scrollTop - tops[0]) / LINE) - BEYOND);
  const past = first + Math.ceil(scroller.clientHeight / LINE) + 2 * BEYOND;
  const chosen = on(now, l);
  const place = new Map(right.map((unit, n) => [unit.number, n]));
  const paths = new Map();
  const bars = { left: new Map(), right: new Map() };
  for (let n = 0; n < left.length; n++) {
    const only = hovered?.side === "left" ? hovered.n === n : n >= first && n < past;
    if (!only && hovered?.side !== "right") continue;
    for (let h = 0; h < heads; h++) {
      if (!chosen.has(h)) continue;
      for (const [unit, weight] of strongest(layer, h, left[n], now)) {
        const to = place.get(unit.number);
        if (to === undefined || (hovered?.side === "right" && hovered.n !== to)) continue;
        const level = Math.min(20, Math.ceil(weight * 20));
        const own = hovered || left[n].positions.some((p) => now.from.includes(p));
        const name = `${h} ${own ? level : -level}`;
        const [y, y2] = [tops[0] + (n + 0.5) * LINE, tops[1] + (to + 0.5) * LINE];
        paths.set(name, `${paths.get(name) ?? ""}M${side} ${y}C${side + gap / 2} ${y} ${side + gap / 2} ${y2} ${side + gap} ${y2}`);
        if (hovered) {
          const [where, which] = hovered.side === "left" ? ["right", to] : ["left", n];
          bars[where].set(which, [...(bars[where].get(which) ?? []), [h, weight]]);
        }
      }
    }
  }
  svg.replaceChildren(...[...paths].map(([name, d]) => {
    const [h, level] = name.split(" ").map(Number);
    return makeSvg("path", { d, fill: "none", stroke: headColour(h, heads), "stroke-opacity": (0.1 + 0.9 * (Math.abs(level) / 20)) * (level < 0 ? 0.35 : 1), "stroke-width": 1 + 1.8 * (Math.abs(level) / 20) });
  }));
  for (const which of ["left", "right"]) shares(scroller.querySelector(`.column.${which}`), bars[which], heads);
}

/** The words that have the strongest part of a row's weight, by mass and not by value. */
function strongest(layer, h, unit, now) {
  const rows = rowsOf(layer, unit.positions);
  if (!rows.length) return [];
  const { weight } = rows.length === 1 ? { weight: layer.weights(h, rows[0], now.bare) } : reading(layer, h, rows, now.bare);
  const sums = now.read.map((one) => [one, one.positions.reduce((sum, p) => sum + (weight[p] || 0), 0)]);
  const total = sums.reduce((sum, [, w]) => sum + w, 0);
  sums.sort((a, b) => b[1] - a[1]);
  const out = [];
  let mass = 0;
  for (const pair of sums) {
    if (pair[1] < LEAST || mass >= (total * now.mass) / 100 - 1e-9) break;
    out.push(pair);
    mass += pair[1];
  }
  return out;
}

/** Beside each token of the other side, what each head gives it. */
function shares(box, bars, heads) {
  box.classList.toggle("dimmed", bars.size > 0);
  [...box.children].forEach((token, n) => {
    const own = bars.get(n) ?? [];
    token.classList.toggle("lit", own.length > 0);
    const said = token.lastElementChild;
    if (!own.length && !said.childElementCount) return;
    said.replaceChildren(...own.map(([h, weight]) => make("i", { style: { backgroundColor: headColour(h, heads), inlineSize: `${Math.max(2, 44 * weight)}px` }, title: exact(weight) })));
  });
}

new ResizeObserver(() => {
  const width = byId("drawing").clientWidth;
  if (frame && width && width !== frame.width && !isPreview()) drawLines();
}).observe(byId("drawing"));
