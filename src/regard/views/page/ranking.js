// The ranked list: what the pinned word reads, beyond what the others give.

import { byId, datum, make, widest } from "./dom.js";
import { chosenLink, everyHead, linksIn, preview, ranked, seen, state, update } from "./state.js";
import { layers } from "./attention.js";
import { labelOf } from "./groups.js";
import { number, percent, points, quoted, where } from "./say.js";

const FIRST = 12; // rows that are drawn at once; the others when asked for
const SCALES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1];

const TITLES = ["word", "at", "", "weight", "others", "as far", "lift", "× ‖value‖", "head"];
const CLASSES = ["name", "place", "barred-cell", "number strong", "number", "number far", "number", "number of-value", "quiet head"];

let all = false;
let pinnedBefore = "";
let table = null; // made once: while the pointer moves only what stands in it changes
let rows = []; // its lines, each with its parts

export function drawRanking() {
  const now = seen();
  const best = now.list === "best";
  const links = linksIn(now, best ? everyHead(now.kind) : now.heads, best ? "max" : now.how);
  const units = ranked(now, links);
  const pinned = now.pinned.join();
  if (pinned !== pinnedBefore) all = false;
  pinnedBefore = pinned;
  const word = quoted(labelOf(now.direction === "reads" ? now.rowText : now.keyText, now.pinned, now.unit));
  const beyond = { lift: "beyond what others give", weight: "by weight alone", contribution: "by weight × value" };
  byId("ranking-title").textContent =
    (now.direction === "reads" ? `What ${word} reads, ` : `What reads ${word}, `) + beyond[now.measure];
  const shown = all ? units : units.slice(0, FIRST);
  const most = Math.max(...shown.map((unit) => largest(links[unit.number])), 0);
  const end = SCALES.find((scale) => scale >= most) ?? 1;
  if (!table) build();
  table.hidden = !shown.length;
  table.classList.toggle("with-value", now.measure === "contribution");
  table.end.textContent = percent(end);
  const name = widest(shown.map((unit) => unit.short.slice(0, 40)), 15.2);
  table.style.setProperty("--name", `${Math.min(8 * Math.ceil(name / 8), 116)}px`); // in steps: else it would tremble
  table.style.setProperty("--places", Math.max(...shown.map((unit) => where(unit.positions).length), 2));
  table.style.setProperty("--head", best || now.heads.length === 1 ? 4 : 7);
  while (rows.length > shown.length) rows.pop().row.remove();
  while (rows.length < shown.length) addRow();
  rows.forEach((line, n) => fill(line, now, shown[n], links[shown[n].number], end));
  byId("nothing").hidden = shown.length > 0;
  const left = units.length - shown.length;
  byId("more").hidden = !left;
  byId("more").textContent = `and ${left} more word${left === 1 ? "" : "s"}`;
}

const largest = (one) => Math.max(one.weight, Math.max(one.baseline, one.distance) || 0);

function build() {
  const end = make("span", { class: "end", title: "where a bar ends" });
  table = make("table", { class: "ranking" },
    make("thead", {}, make("tr", {}, ...TITLES.map((title, n) => make("th", { scope: "col", class: CLASSES[n] }, title || end)))),
    make("tbody"));
  table.end = end;
  byId("list").append(table,
    make("p", { class: "hint", id: "nothing", hidden: true }, "Nothing here can be compared."),
    make("button", { class: "plain more", id: "more", onclick: () => { all = true; drawRanking(); } }));
}

function addRow() {
  const line = { change: null };
  line.name = make("bdi");
  line.button = make("button", { class: "plain", onclick: () => update(line.change) }, line.name);
  line.bar = make("i", { class: "fill" });
  line.tick = make("i", { class: "tick" });
  line.numbers = [3, 4, 5, 6].map(() => datum("", ""));
  line.contribution = make("span");
  line.place = make("span");
  line.head = make("span");
  const parts = [line.button, line.place, make("span", { class: "weight" }, line.bar, line.tick), ...line.numbers, line.contribution, line.head];
  line.row = make("tr", {}, ...parts.map((part, n) => make("td", { class: CLASSES[n] }, part)));
  line.row.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") preview(line.change); });
  line.row.addEventListener("pointerleave", () => preview(null));
  table.tBodies[0].append(line.row);
  rows.push(line);
}

function fill(line, now, unit, one, end) {
  const reference = Math.max(one.baseline, one.distance);
  const chosen = unit.positions.join() === now.picked.join();
  line.change = { [now.direction === "reads" ? "to" : "from"]: unit.positions };
  if (now.list === "best") line.change.heads = [one.head];
  line.name.textContent = unit.short;
  line.button.title = unit.short;
  line.button.setAttribute("aria-pressed", String(chosen));
  line.place.textContent = where(unit.positions);
  line.bar.style.inlineSize = `${Math.min(100, (100 * one.weight) / end)}%`;
  line.tick.style.insetInlineStart = `${Math.min(100, (100 * reference) / end) || 0}%`;
  line.tick.hidden = !Number.isFinite(reference);
  const { weight, baseline, distance, lift, contribution } = one;
  const said = [percent(weight), percent(baseline), percent(distance), points(lift)];
  [weight, baseline, distance, lift].forEach((value, n) => {
    line.numbers[n].textContent = said[n];
    line.numbers[n].value = String(value);
  });
  line.contribution.textContent = number(contribution);
  line.contribution.title = String(contribution);
  line.head.textContent = one.head ? layers[one.head[0]].label(one.head[1]) : `${now.heads.length} heads`;
  line.row.classList.toggle("chosen", chosen);
}

/** While something is previewed the list of the pinned word stays; else it would run away. */
export function drawsRanking(changed, previewed) {
  if (!previewed) return true;
  return seen().pinned.join() !== (state.direction === "reads" ? state.from : state.to).join() || changed.size > 1;
}

/** The line about the head: where the link is, and what the others give as far away. */
export function beside(now = seen()) {
  const one = chosenLink(now);
  const away = now.to[0] - now.from[0];
  const far = `${Math.abs(away)} token${Math.abs(away) === 1 ? "" : "s"} ${away > 0 ? "on" : "back"}`;
  const head = one.head ?? now.heads[0];
  const layer = layers[head[0]];
  const name = layer.called(head[1]);
  const place = now.heads.length === 1 ? `${name}.`
    : now.how === "max" ? `The best of ${now.heads.length} heads: ${name.toLowerCase()}.`
    : `The mean of ${now.heads.length} heads.`;
  if (!layer.said.distances) return place;
  if (away === 0) return `${place} ${Number.isFinite(one.distance) ? `To themselves the others give ${percent(one.distance)}.` : ""}`;
  return `${place} ${Number.isFinite(one.distance)
    ? `To whatever stands ${far}, the others give ${percent(one.distance)}.`
    : `No other token has one ${far}.`}`;
}

/** What went with special tokens and sinks, of the rows and heads that are shown. */
export function removedMass(now = seen()) {
  const shares = now.heads.flatMap(([l, h]) => now.from
    .map((p) => p - layers[l].said.offset)
    .filter((row) => row >= 0 && row < layers[l].rows)
    .map((row) => layers[l].removed(h, row)));
  return shares.reduce((sum, share) => sum + share, 0) / (shares.length || 1);
}

