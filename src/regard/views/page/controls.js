// What can be switched, searched and copied, and the keys that do the same.

import { page } from "./data.js";
import { byId, make } from "./dom.js";
import { everyHead, hash, onChange, pinning, preview, startOf, state, update } from "./state.js";
import { layers } from "./attention.js";
import { hasMaps, hasMeasures } from "./heads.js";
import { compare, switched } from "./compare.js";
import { find, focusWord, mark } from "./words.js";
import { scaled, shade } from "./palette.js";
import { toast } from "./save.js";

const syncs = []; // what brings each control up to date

/** Buttons of which one is pressed. */
export function choice(label, name, options, changes = (value) => ({ [name]: value })) {
  const buttons = options.map(([value, text, title]) => {
    const button = make("button", { onclick: () => update(changes(value)), title: title ?? "" }, text);
    const sync = () => button.setAttribute("aria-pressed", String(state[name] === value));
    sync();
    syncs.push(sync);
    return button;
  });
  const box = make("div", { class: "choice", role: "group" }, ...buttons);
  box.setAttribute("aria-label", label);
  return box;
}

export function menu(label, name, options) {
  const select = make("select", { onchange: () => update({ [name]: select.value }) },
    ...options.map(([value, text]) => make("option", { value }, text)));
  select.setAttribute("aria-label", label);
  syncs.push(() => (select.value = state[name]));
  return select;
}

export function check(label, name, title) {
  const input = make("input", { type: "checkbox", onchange: () => update({ [name]: input.checked }) });
  syncs.push(() => (input.checked = state[name]));
  return make("label", { class: "check", title }, input, label);
}

export function buildControls() {
  const kinds = [...new Set(layers.map((layer) => layer.said.kind))];
  const bare = layers.some((layer) => layer.said.without);
  const sinks = layers.some((layer) => layer.said.sinks);
  byId("controls").append(
    searchBox(),
    ...(kinds.length > 1 ? [choice("Which attention", "kind", kinds.map((kind) => [kind, kind]), otherKind)] : []),
    choice("Direction", "direction", [["reads", "reads", "What the pinned word reads"], ["read_by", "is read by", "What reads the pinned word"]], turned),
    choice("Measure", "measure", [
      ["lift", "lift", "The weight beyond what the others give, on average or as far away"],
      ["weight", "weight", "The bare weight"],
      ["contribution", "× value", "Weight × the length of the value, before the output projection"]]),
    ...(Object.values(page.texts).every((text) => text.grid) ? [] : [choice("Unit", "unit", [["word", "words"], ["token", "tokens"]])]),
    choice("Scale of the shades", "scale", [
      ["root", "soft", "Small values are drawn out: x to the power of 0.55, below zero of 0.8"],
      ["linear", "linear", "A shade is twice as strong for twice the value"],
      ["log", "log", "From 0.1 % to 100 %, in equal steps of a power"]]),
    ...(bare ? [check(sinks ? "without special tokens and sinks" : "without special tokens", "bare", "Leaves them out and gives what they got to the others in proportion: no longer the model's weights")] : []),
    make("span", { class: "inline last" }, make("button", { onclick: copyLink }, "Copy link"),
      make("button", { onclick: showKeys, title: "All keys (?)", ariaLabel: "All keys" }, "?")),
  );
  byId("list-of").append(choice("The list", "list", [["best", "best heads", "Each word in the head that gives it most"], ["heads", "chosen heads", "Only the heads that are chosen below"]]));
  const all = make("button", { title: "All heads together", onclick: () => update({ heads: everyHead(), list: "heads" }) }, "all heads");
  byId("heads-controls").append(
    ...(hasMaps ? [choice("Cells show", "cells", [["link", "link", "What each head gives this link"], ["maps", "maps", "The largest weights of each head: rows read, columns are read"]])] : []),
    menu("Order of heads", "sort", [["model", "in layers"], ["link", "this link, most first"],
      ...(hasMeasures ? Object.keys(page.measured).map((name) => [name, `by ${name.replace("_", " ")}`]) : [])]),
    all,
    choice("Several heads", "how", [["mean", "mean"], ["max", "best"]]));
  byId("theme").onclick = () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    update({});
  };
  onChange(sync);
  sync();
  document.addEventListener("keydown", keys);
}

function sync(changed) {
  if (changed?.size === 1 && changed.has("preview")) return; // what is previewed switches nothing
  for (const bring of syncs) bring();
  drawLegend();
}

function otherKind(kind) {
  if (compare && kind !== state.kind && switched(kind)) return switched(kind);
  return startOf(kind);
}

/** The same word the other way round. */
function turned(direction) {
  const pinned = state.direction === "reads" ? state.from : state.to;
  const base = { ...state, direction };
  return { direction, ...pinning(pinned, base) };
}

/** What the shades mean, in the measure and on the scale that are chosen. */
export function drawLegend() {
  const lift = state.measure === "lift";
  const steps = Array.from({ length: 41 }, (_, n) => shade(scaled(lift ? (n - 20) / 20 : n / 40, state.scale))[0]);
  const bar = make("span", { class: "ramp", style: { background: `linear-gradient(to right, ${steps.join(",")})` } });
  const [low, high] = { lift: ["less than others", "more"], weight: ["0", "100 %"], contribution: ["0", "the largest"] }[state.measure];
  byId("legend").replaceChildren(make("span", {}, low), bar, make("span", {}, high));
}

// ------------------------------------------------------------------------------- search

function searchBox() {
  let found = [], at = -1;
  const input = make("input", { type: "search", id: "search", placeholder: "find a word  /", autocomplete: "off", spellcheck: false });
  input.setAttribute("aria-label", "Find a word or a position");
  input.oninput = () => { found = find(input.value); at = -1; mark(found); };
  input.onkeydown = (event) => {
    if (event.key === "Enter" && found.length) {
      at = (at + (event.shiftKey ? found.length - 1 : 1)) % found.length;
      update(pinning(found[at].positions));
      const n = found[at].number;
      requestAnimationFrame(() => document.querySelector(`.word[data-n="${n}"]`)?.scrollIntoView({ block: "nearest" }));
    } else if (event.key === "Escape") {
      input.value = "";
      mark([]);
      focusWord(found[Math.max(at, 0)]?.number ?? 0);
    }
  };
  return input;
}

// ------------------------------------------------------------------------------- keys

const KEYS = [
  ["/", "find a word or a position; Enter goes to the next"],
  ["arrows", "move among words, heads, dimensions or cells; what is under the focus is previewed"],
  ["Enter", "pin it"],
  ["Shift + arrows", "a span of words, a part of the matrix"],
  ["t", "in the text: make this word the other end of the link"],
  ["+  −  0", "in the matrix: closer, farther, all"],
  ["w  h  c  l  m", "go to words, heads, calculation, lines, matrix"],
  ["Escape", "end a preview or a search"],
];
const PLACES = {
  w: "#text .word[tabindex='0']", h: ".cell[tabindex='0']", c: ".strips[tabindex='0']",
  l: ".token[tabindex='0']", m: "#cells",
};

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  if (event.key === "/") {
    event.preventDefault();
    byId("search").focus();
  } else if (event.key === "?") showKeys();
  else if (event.key === "Escape") preview(null);
  else if (PLACES[event.key]) {
    const place = document.querySelector(PLACES[event.key]);
    place?.scrollIntoView({ block: "center" });
    place?.focus({ preventScroll: true });
  }
}

function showKeys() {
  const dialog = byId("keys");
  dialog.replaceChildren(make("h2", { id: "keys-title" }, "Keys"),
    make("dl", {}, ...KEYS.flatMap(([key, does]) => [make("dt", {}, key), make("dd", {}, does)])),
    make("button", { onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}

async function copyLink() {
  const link = `${location.href.split("#")[0]}#${hash()}`;
  try {
    await navigator.clipboard.writeText(link);
    toast("Link copied");
  } catch {
    const box = make("textarea", { value: link });
    document.body.append(box);
    box.select();
    const copied = document.execCommand("copy");
    box.remove();
    toast(copied ? "Link copied" : "The browser does not let a page copy");
  }
}
