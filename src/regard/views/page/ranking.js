// The ranked list: what the pinned word reads, beyond what the others give.

import { byId, datum, make } from "./dom.js";
import { chosenLink, everyHead, linksIn, preview, ranked, seen, state, update } from "./state.js";
import { layers } from "./attention.js";
import { labelOf } from "./groups.js";
import { number, percent, points, quoted, where } from "./say.js";

const FIRST = 12; // rows that are drawn at once; the others when asked for
const SCALES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1];

let all = false;
let pinnedBefore = "";

export function drawRanking() {
  const now = seen();
  const best = now.list === "best";
  const links = linksIn(now, best ? everyHead(now.kind) : now.heads, best ? "max" : now.how);
  const rows = ranked(now, links);
  const pinned = now.pinned.join();
  if (pinned !== pinnedBefore) all = false;
  pinnedBefore = pinned;
  const word = quoted(labelOf(now.direction === "reads" ? now.rowText : now.keyText, now.pinned, now.unit));
  const beyond = { lift: "beyond what others give", weight: "by weight alone", contribution: "by weight × value" };
  byId("ranking-title").textContent =
    (now.direction === "reads" ? `What ${word} reads, ` : `What reads ${word}, `) + beyond[now.measure];
  const shown = all ? rows : rows.slice(0, FIRST);
  const most = Math.max(...shown.map((unit) => largest(links[unit.number])), 0);
  const end = SCALES.find((scale) => scale >= most) ?? 1;
  const focused = byId("list").contains(document.activeElement) ? document.activeElement.dataset.at : null;
  byId("list").replaceChildren(shown.length ? table(now, links, shown, end) : make("p", { class: "hint" }, "Nothing here can be compared."));
  if (rows.length > shown.length)
    byId("list").append(make("button", { class: "plain more", onclick: () => { all = true; drawRanking(); } },
      `and ${rows.length - shown.length} more words`));
  if (focused) byId("list").querySelector(`[data-at="${focused}"]`)?.focus({ preventScroll: true });
}

const largest = (one) => Math.max(one.weight, Math.max(one.baseline, one.distance) || 0);

function table(now, links, shown, end) {
  const head = ["word", "at", "", "weight", "others", "as far", "lift", "head"];
  if (now.measure === "contribution") head.splice(7, 0, "× ‖value‖");
  const body = make("tbody");
  for (const unit of shown) body.append(row(now, unit, links[unit.number], end));
  return make("table", { class: "ranking" },
    make("thead", {}, make("tr", {}, ...head.map((title) =>
      make("th", { scope: "col" }, title || make("span", { class: "end", title: "where a bar ends" }, percent(end)))))),
    body);
}

function row(now, unit, one, end) {
  const reference = Math.max(one.baseline, one.distance);
  const chosen = unit.positions.join() === now.picked.join();
  const change = { [now.direction === "reads" ? "to" : "from"]: unit.positions };
  if (now.list === "best") change.heads = [one.head];
  const button = make("button", { class: "plain", onclick: () => update(change), title: unit.label, data: { at: unit.positions[0] } }, make("bdi", {}, unit.label));
  button.setAttribute("aria-pressed", String(chosen));
  const bar = make("span", { class: "weight" },
    make("i", { class: "fill", style: { inlineSize: `${Math.min(100, (100 * one.weight) / end)}%` } }),
    make("i", { class: "tick", hidden: !Number.isFinite(reference), style: { insetInlineStart: `${Math.min(100, (100 * reference) / end)}%` } }));
  const head = one.head ? layers[one.head[0]].label(one.head[1]) : `${now.heads.length} heads`;
  const cells = [
    make("td", { class: "name" }, button),
    make("td", { class: "quiet" }, where(unit.positions)),
    make("td", { class: "barred-cell" }, bar),
    make("td", { class: "number strong" }, datum(percent(one.weight), one.weight)),
    make("td", { class: "number" }, datum(percent(one.baseline), one.baseline)),
    make("td", { class: "number far" }, datum(percent(one.distance), one.distance)),
    make("td", { class: "number" }, datum(points(one.lift), one.lift)),
    make("td", { class: "quiet head" }, head),
  ];
  if (now.measure === "contribution") cells.splice(7, 0, make("td", { class: "number" }, datum(number(one.contribution), one.contribution)));
  const line = make("tr", { class: chosen ? "chosen" : "" }, ...cells);
  line.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") preview(change); });
  line.addEventListener("pointerleave", () => preview(null));
  return line;
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
  const name = `Layer ${layer.said.number} head ${layer.said.heads[head[1]]}`;
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

