// The text as text: a word is pinned, the others are shaded by how it reads them.

import { page } from "./data.js";
import { byId, make, nextByArrow, rove } from "./dom.js";
import { chosenLink, isPreview, linksIn, pinning, preview, seen, state, update } from "./state.js";
import { compare, counterpart, elsewhere } from "./compare.js";
import { layers } from "./attention.js";
import { labelOf, rowsOf, unitsOf } from "./groups.js";
import { FAINT, scaled, shade } from "./palette.js";
import { laidOut, veiled } from "./patches.js";
import { exact, percent, points, where } from "./say.js";

const WHOLE = 24; // words of so many letters are not broken into lines
const SHORT = 120; // a text of more words has positions and bars only where one looks
const RTL = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
const LTR = /[A-Za-z\u00c0-\u024f\u0370-\u058f\u0900-\u1fff\u3040-\u9fff\uac00-\ud7af]/g;

let built = "", inSight = "";
let blocks = []; // what each block of text is for, its units and their elements

/** Which way a text runs: the way most of its letters do. */
export function runsLeft(name) {
  const all = unitsOf(name, "word").map((one) => one.label).join("");
  const left = (all.match(new RegExp(RTL, "g")) ?? []).length;
  return left > (all.match(LTR) ?? []).length;
}

export function drawWords() {
  const now = seen();
  const name = `${now.kind} ${now.unit} ${now.direction}`;
  if (built !== name) build(now);
  built = name;
  const names = !isPreview(); // while something is hovered nobody is read to
  const own = withLinks(now);
  for (const block of blocks) {
    const shown = block.other ? withLinks(counterpart(now)) : own;
    for (const chip of block.chips) paint(chip, shown, block, names);
  }
  if (names && String(now.pinned) !== inSight) {
    inSight = String(now.pinned);
    for (const block of blocks) if (block.long) bringIntoSight(block);
  }
}

/** Scroll a long text, and nothing else, to its pinned word. */
function bringIntoSight({ chips }) {
  const chip = chips.find((one) => one.classList.contains("pinned") || one.classList.contains("picked"));
  const box = chip?.parentNode;
  if (!box) return;
  const [own, around] = [chip.getBoundingClientRect(), box.getBoundingClientRect()];
  if (own.top < around.top || own.bottom > around.bottom) box.scrollTop += own.top - around.top - around.height / 3;
}

function build(now) {
  blocks = [];
  byId("words-title").textContent = page.texts[now.keyText].grid ? "The image" : "The text";
  const text = byId("text");
  text.replaceChildren();
  const names = compare ? ["before", "after"] : now.same ? [now.keyText] : [now.rowText, now.keyText];
  for (const name of names) {
    const other = compare !== null && name !== now.kind;
    const units = unitsOf(name, now.unit);
    const pins = now.same ? !other : (name === now.rowText) === (now.direction === "reads");
    const { grid, picture } = page.texts[name];
    const left = !grid && runsLeft(name), long = !grid && units.length > SHORT;
    const box = make("div", {
      class: `text${grid ? " image" : long ? " long" : units.length < 32 ? " short" : ""}`, role: "listbox",
      dir: left ? "rtl" : "ltr", data: { text: name },
    });
    box.setAttribute("aria-multiselectable", "true");
    box.setAttribute("aria-label", names.length > 1 ? `The ${pins ? "text that is asked" : "other text"}` : "The text");
    const chips = units.map((unit) => {
      const chip = make("span", { class: "word", role: "option", data: { n: unit.number } },
        make("bdi", {}, unit.short),
        unit.named ? make("small", {}, where(unit.positions)) : null,
        long || grid ? null : make("i", { class: "gauge" }, make("i", { class: "fill" }), make("i", { class: "tick" })));
      if (unit.special) chip.classList.add("special");
      if (unit.short.length <= WHOLE) chip.classList.add("whole");
      if (!unit.spaced) chip.classList.add("joined", ...(now.unit === "token" ? ["piece"] : []));
      box.append(unit.number && unit.spaced ? " " : "", chip);
      if (!unit.spaced) box.append("\u2060");
      return chip;
    });
    if (grid) laidOut(box, chips, grid, picture);
    const block = { name, units, chips, pins, other, shades: now.same || !pins, left, long, gauged: !long && !grid, pictured: picture !== "" };
    blocks.push(block);
    listen(box, block);
    if (compare) text.append(make("h3", {}, name === "before" ? "before" : `after: ${compare.difference}`));
    else if (names.length > 1) text.append(make("h3", {}, pins ? "asked" : "answering"));
    text.append(box);
  }
}

/** What is shown, with its links; of no counterpart nothing. */
function withLinks(now) {
  if (!now) return { pinned: [], picked: [], links: [], same: true };
  const links = linksIn(now, now.heads, now.how);
  const largest = Math.max(1e-12, ...links.map((one) => Math.abs(one[now.measure]) || 0));
  return { ...now, links, largest };
}

function paint(chip, now, block, names) {
  const { links, largest } = now;
  const unit = block.units[chip.dataset.n];
  const own = (block.pins || block.other) && unit.positions.some((p) => now.pinned.includes(p));
  const other = !block.pins || now.same ? unit.positions.some((p) => now.picked.includes(p)) : false;
  const one = block.shades ? links[unit.number] ?? null : null;
  chip.classList.toggle("pinned", own);
  chip.classList.toggle("picked", other && !own);
  const barred = !own && one?.allowed === false;
  chip.classList.toggle("barred", barred);
  if (names) chip.setAttribute("aria-selected", own || other ? "true" : "false");
  let value = own || barred || !one ? 0 : one[now.measure];
  if (now.measure === "contribution") value /= largest;
  value = Number.isFinite(value) ? scaled(value, now.scale) : 0;
  colour(chip, Math.abs(value) < FAINT ? null : block.pictured ? veiled(value) : shade(value));
  if (own || !one) {
    if (names) chip.setAttribute("aria-label", `${unit.short}, position ${where(unit.positions)}${own ? ", pinned" : ""}`);
    return;
  }
  if (block.gauged) gauge(chip.lastElementChild.children, one);
  if (!names) return;
  chip.setAttribute("aria-label", barred
    ? `${unit.short}, position ${where(unit.positions)}, may not be read`
    : `${unit.short}, position ${where(unit.positions)}, ${percent(one.weight)}, others ${percent(one.baseline)}, lift ${points(one.lift)}`);
  chip.title = barred ? "may not attend" : `${unit.short === unit.label ? "" : "Pin it and click once more to see it whole. "}${where(unit.positions)}: weight ${exact(one.weight)}, others ${exact(one.baseline)}, lift ${points(one.lift)}`;
}

/** Set ground and ink; most words keep theirs while the pointer moves. */
function colour(chip, shaded) {
  const ground = shaded?.[0] ?? "";
  if (chip.ground === ground) return;
  chip.ground = ground;
  chip.style.backgroundColor = ground;
  chip.style.color = shaded?.[1] ?? "";
}

/** The weight as a bar, what the others give as a tick. */
function gauge(parts, one) {
  parts[0].style.inlineSize = `${100 * Math.min(1, one.weight || 0)}%`;
  const reference = Math.max(one.baseline, one.distance);
  parts[1].style.insetInlineStart = `${100 * Math.min(1, reference || 0)}%`;
  parts[1].hidden = !Number.isFinite(reference);
}

// ------------------------------------------------------------------------------- the hand

function listen(box, block) {
  const at = (event) => event.target.closest?.(".word");
  const unitOf = (chip) => block.units[chip.dataset.n];
  rove(block.chips, Math.max(0, block.chips.findIndex((chip) => seen().pinned.includes(unitOf(chip).positions[0]))));
  if (block.pins) {
    box.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "mouse" || event.shiftKey || event.ctrlKey || event.metaKey) return;
      const chip = at(event);
      if (chip) previewOf(unitOf(chip));
    });
    box.addEventListener("pointerleave", () => preview(null));
  }
  box.addEventListener("click", (event) => {
    const chip = at(event);
    if (!chip) return;
    rove(block.chips, Number(chip.dataset.n), true);
    choose(unitOf(chip), block, event);
  });
  box.addEventListener("keydown", (event) => {
    const chip = at(event);
    if (!chip) return;
    const n = Number(chip.dataset.n);
    const next = nextByArrow(block.chips, n, event.key, block.left);
    if (next >= 0) {
      event.preventDefault();
      rove(block.chips, next, true);
      if (event.shiftKey) choose(block.units[next], block, event);
      else if (block.pins) previewOf(block.units[next]);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(unitOf(chip), block, event);
    } else if (event.key === "t") choose(unitOf(chip), block, { ctrlKey: true });
    else if (event.key === "Escape") preview(null);
  });
  box.addEventListener("focusout", () => preview(null));
}

function previewOf(unit) {
  preview(unit.positions.every((p) => pinnedNow().includes(p)) ? null : pinning(unit.positions));
}

const pinnedNow = () => (state.direction === "reads" ? state.from : state.to);

/** Pin a word; with Shift up to it, with Ctrl as the other end of the link. */
export function choose(unit, block, event) {
  const pinName = state.direction === "reads" ? "from" : "to";
  const otherName = state.direction === "reads" ? "to" : "from";
  if (block.other) { // in the other text: look at it there
    const { heads } = counterpart(seen()) ?? state;
    const there = { ...state, kind: block.name, heads };
    update({ kind: block.name, heads, ...pinning(unit.positions, there) });
    return;
  }
  if (!block.pins || event.ctrlKey || event.metaKey) {
    if (!unit.positions.some((p) => block.pins && pinnedNow().includes(p))) update({ [otherName]: unit.positions });
    return;
  }
  if (event.shiftKey) {
    const all = [...state[pinName], ...unit.positions];
    const span = [];
    for (let p = Math.min(...all); p <= Math.max(...all); p++) span.push(p);
    update(pinning(span));
    return;
  }
  if (pinnedNow().join() === unit.positions.join()) unfold(unit, block);
  update(pinning(unit.positions));
}

/** A very long word that is pinned is shown whole, and folded again. */
function unfold(unit, block) {
  if (unit.short === unit.label) return;
  const text = block.chips[unit.number].firstChild;
  text.textContent = text.textContent === unit.label ? unit.short : unit.label;
}

/** Put the one tab stop of the text on a word. */
export function focusWord(n) {
  const block = blocks.find((one) => one.pins);
  rove(block.chips, n, true);
  block.chips[n].scrollIntoView({ block: "nearest" });
}

/** The words that hold some text or stand at a position, for the search. */
export function find(wanted) {
  const block = blocks.find((one) => one.pins);
  const asked = wanted.trim().toLowerCase();
  if (!asked) return [];
  const at = /^\d+$/.test(asked) ? Number(asked) : -1;
  const exactly = block.units.filter((unit) => unit.label.toLowerCase() === asked || unit.positions.includes(at));
  const others = block.units.filter((unit) => unit.label.toLowerCase().includes(asked) && !exactly.includes(unit));
  return [...exactly, ...others];
}

/** Mark what a search has found. */
export function mark(units) {
  const found = new Set(units);
  for (const block of blocks) for (const chip of block.chips)
    chip.classList.toggle("found", found.has(block.units[chip.dataset.n]));
}

// ------------------------------------------------------------------------------- the sentence

/** Whether the chosen words may attend, but by what is no number. */
function isBroken(now) {
  return now.heads.some(([l, h]) => rowsOf(layers[l], now.from).some((row) => now.to.some((key) =>
    layers[l].allowed(h, row, key) && Number.isNaN(layers[l].score(h, row, key)))));
}

/** What is seen, in parts: text, and the words of the text. */
export function sentence(now = seen()) {
  const one = chosenLink(now);
  const from = labelOf(now.rowText, now.from, now.unit), to = labelOf(now.keyText, now.to, now.unit);
  if (!one.allowed && isBroken(now)) return { one, parts: [[from, true], [" gives "], [to, true], [" no number: query, key or bias hold NaN or infinity."]] };
  if (!one.allowed) return { one, parts: [[from, true], [" may not attend to "], [to, true], ["."]] };
  if (compare) return { one, parts: [[from, true], [" gives "], [to, true], [` ${percent(one.weight)}${elsewhere(now) || "."}`]] };
  const beside = Number.isFinite(one.baseline)
    ? `; the others give it ${percent(one.baseline)}.` : "; there are no others to compare it with.";
  return { one, parts: [[from, true], [" gives "], [to, true], [` ${percent(one.weight)}${beside}`]] };
}
