// Two recordings side by side: the same link in the other text, and what changed most.

import { page } from "./data.js";
import { byId, datum, make } from "./dom.js";
import { chosenLink, everyHead, seen, state, update } from "./state.js";
import { layers } from "./attention.js";
import { labelOf, unitsOf } from "./groups.js";
import { percent, points, where } from "./say.js";

export const compare = page.compare ?? null;

const maps = [new Map(), new Map()]; // positions of one text -> those of the other
for (const [before, after] of compare?.pairs ?? []) {
  for (const p of before) maps[0].set(p, after);
  for (const p of after) maps[1].set(p, before);
}

const across = (map, positions) => [...new Set(positions.flatMap((p) => map.get(p) ?? []))].sort((a, b) => a - b);

/** What is shown, in the other text; null where it has no such words or heads. */
export function counterpart(now) {
  if (!compare) return null;
  const kind = now.kind === "before" ? "after" : "before";
  const map = maps[now.kind === "before" ? 0 : 1];
  const from = across(map, now.from), to = across(map, now.to);
  const wanted = new Set(now.heads.map(([l, h]) => layers[l].label(h)));
  const heads = everyHead(kind).filter(([l, h]) => wanted.has(layers[l].label(h)));
  if (!from.length || !heads.length) return null;
  const units = unitsOf(kind, now.unit);
  const reads = now.direction === "reads";
  return { ...now, kind, from, to, heads, rowText: kind, keyText: kind, readers: units, read: units, units,
    pinned: reads ? from : to, picked: reads ? to : from, same: true };
}

/** The same in the other text: what a switch to it shows. */
export function switched(kind) {
  const other = counterpart(seen());
  return other ? { kind, from: other.from, to: other.to.length ? other.to : state.to, heads: other.heads } : null;
}

/** What the other text gives, as the end of the sentence. */
export function elsewhere(now) {
  const other = counterpart(now);
  if (!other) return "";
  const name = now.kind === "before" ? compare.difference : `not ${compare.difference}`;
  if (!other.to.length) return `; ${name} it has no counterpart.`;
  const one = chosenLink(other);
  return `; ${name}, ${one.allowed ? percent(one.weight) : "it may not attend"}.`;
}

/** The list of what changed most; a row is looked at when it is clicked. */
export function drawChanges() {
  byId("changes").hidden = !compare;
  if (!compare) return;
  const now = seen();
  const most = Math.max(...compare.links.flatMap((one) => one.weights), 0.01);
  const rows = compare.links.map((one) => {
    const [before, after] = one.weights;
    const head = everyHead("before").find(([l, h]) => layers[l].said.number === one.layer && layers[l].said.heads[h] === one.head);
    const chosen = now.kind === "before" && one.from.join() === now.from.join() && one.to.join() === now.to.join() && now.heads.join() === String(head);
    const both = (end) => {
      const [old, young] = [labelOf("before", one[end]), labelOf("after", across(maps[0], one[end]))];
      return old === young ? old : `${old}/${young}`;
    };
    const change = { kind: "before", direction: "reads", from: one.from, to: one.to, ...(head ? { heads: [head] } : {}) };
    const button = make("button", { class: "plain", onclick: () => update(change), data: { at: `${one.layer}.${one.head}.${one.from}.${one.to}` } }, make("bdi", {}, `${both("from")} → ${both("to")}`));
    button.setAttribute("aria-pressed", String(chosen));
    const share = (w) => `${(100 * w) / most}%`;
    const bar = make("span", { class: "weight" },
      make("i", { class: "fill", style: { inlineSize: share(after) } }),
      make("i", { class: "tick", style: { insetInlineStart: share(before) } }));
    return make("tr", { class: chosen ? "chosen" : "" },
      make("td", { class: "name wide" }, button), make("td", { class: "quiet" }, `${where(one.from)} → ${where(one.to)}`),
      make("td", { class: "barred-cell" }, bar),
      make("td", { class: "number" }, datum(percent(before), before)), make("td", { class: "number strong" }, datum(percent(after), after)),
      make("td", { class: "number" }, points(after - before)), make("td", { class: "quiet head" }, `${one.layer}.${one.head}`));
  });
  const focused = byId("changed").contains(document.activeElement) ? document.activeElement.dataset.at : null;
  byId("changed").replaceChildren(make("table", { class: "ranking" },
    make("thead", {}, make("tr", {}, ...["link", "at", "bar: after, tick: before", "before", "after", "change", "head"].map((title) => make("th", { scope: "col" }, title)))),
    make("tbody", {}, ...rows)));
  if (focused) byId("changed").querySelector(`[data-at="${focused}"]`)?.focus({ preventScroll: true });
}
