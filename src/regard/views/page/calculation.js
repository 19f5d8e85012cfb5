// The calculation of one weight, with the model's own numbers, product by product.

import { byId, datum, make } from "./dom.js";
import { seen } from "./state.js";
import { layers } from "./attention.js";
import { labelOf } from "./groups.js";
import { shade } from "./palette.js";
import { exact, number, quoted, signed } from "./say.js";

const open = new Set(); // steps that are unfolded, which stay so
const MOST = 200; // keys that the softmax lists at once

export function drawCalculation() {
  const now = seen();
  const [l, h] = now.heads[0];
  const layer = layers[l];
  const row = now.from.map((p) => p - layer.said.offset).find((r) => r >= 0 && r < layer.rows);
  const key = now.to[0];
  const steps = byId("steps");
  if (row === undefined) return steps.replaceChildren(make("p", { class: "hint" }, "This row was not recorded."));
  const name = layer.called(h).toLowerCase();
  const from = quoted(labelOf(now.rowText, [row + layer.said.offset], "token"));
  const to = quoted(labelOf(now.keyText, [key], "token"));
  const many = now.from.length > 1 || now.to.length > 1;
  byId("calculation-title").textContent = `The calculation: ${from} ${row + layer.said.offset} → ${to} ${key}`;
  steps.replaceChildren(
    make("p", { class: "quiet small" }, `In ${name}${many ? ", of the first piece of each word" : ""}.${now.bare ? " As the model has it, special tokens included." : ""}`),
    products(layer, h, row, key, from, to),
    cards(layer, h, row, key),
    softmax(layer, h, row, key, now),
    values(layer, h, row, key, to),
  );
}

// ------------------------------------------------------------------------------- query · key

function products(layer, h, row, key, from, to) {
  const { width } = layer;
  const a = (h * layer.rows + row) * width, b = (Math.floor(h / layer.each) * layer.keys + key) * width;
  const query = layer.get("query").subarray(a, a + width), keys = layer.get("key").subarray(b, b + width);
  const product = Float64Array.from(query, (x, d) => x * keys[d]);
  const sum = product.reduce((total, x) => total + x, 0);
  const said = make("p", { class: "dimension", ariaLive: "off" }, "Point at a dimension for its numbers.");
  const show = (d) => {
    said.textContent = `Dimension ${d}: ${number(query[d])} × ${number(keys[d])} = ${number(product[d])}`;
  };
  const box = make("div", { class: "strips", tabIndex: 0, role: "group" },
    strip(`query ${from}`, query, show), strip(`key ${to}`, keys, show),
    strip("product", product, show, make("span", { class: "sum" }, "Σ ", datum(number(sum, 4), sum, { id: "product" }))));
  box.setAttribute("aria-label", `Query and key, ${width} dimensions; arrows go through them`);
  let at = -1;
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.max(0, Math.min(width - 1, at + step));
    mark(box, at);
    said.setAttribute("aria-live", "polite");
    show(at);
  });
  return make("div", {}, box, said, unfold("products", `All ${width} products`, () => {
    let running = 0;
    const rows = [...product].map((x, d) => {
      running += x;
      return make("tr", {}, ...[d, query[d], keys[d], x, running].map((value, n) =>
        make("td", { class: "number" }, n ? datum(number(value, 4), value) : String(d))));
    });
    return table(["dimension", "query", "key", "product", "sum so far"], rows);
  }));
}

function strip(name, values, show, after = null) {
  const most = values.reduce((largest, x) => Math.max(largest, Math.abs(x)), 0) || 1;
  const cells = make("span", { class: "cells" });
  values.forEach((value, d) => {
    const [colour] = shade(value / most);
    cells.append(make("i", { style: { backgroundColor: colour }, data: { d } }));
  });
  cells.addEventListener("pointerover", (event) => {
    const { d } = event.target.dataset;
    if (d === undefined || !show) return;
    mark(cells.closest(".strips"), Number(d));
    show(Number(d));
  });
  return make("div", { class: "strip" }, make("span", { class: "name" }, make("bdi", {}, name)), cells, after);
}

function mark(box, d) {
  for (const cell of box.querySelectorAll("i")) cell.classList.toggle("marked", Number(cell.dataset.d) === d);
}

// ------------------------------------------------------------------------------- step by step

function cards(layer, h, row, key) {
  const { said } = layer;
  const product = layer.product(h, row, key), scaled = product * said.scale;
  const root = Math.abs(said.scale * Math.sqrt(layer.width) - 1) < 1e-6;
  const allowed = layer.allowed(h, row, key);
  const list = [["query · key", product, `${layer.width} products, summed`]];
  list.push([root ? `÷ √${layer.width}` : `× ${signed(String(Number(said.scale.toPrecision(4))))}`, scaled, "scaled"]);
  if (said.softcap) list.push([`cap ${said.softcap}`, layer.capped(scaled), `${said.softcap} · tanh(x ÷ ${said.softcap})`]);
  if (said.bias) list.push(["+ bias", layer.capped(scaled) + layer.bias(h, row, key), `bias ${number(layer.bias(h, row, key))}`]);
  const weight = layer.weight(h, row, key, false);
  const box = make("ol", { class: "cards" }, ...list.map(([name, value, under]) => card(name, datum(number(value), value), under)));
  box.append(allowed
    ? card("softmax", datum(exact(weight), weight, { id: "weight" }), `e^${number(layer.score(h, row, key), 2)} ÷ Σ over ${keys(count(layer, h, row))}`)
    : card("softmax", "0 %", "may not attend: masked"));
  const length = layer.lengths(h)[key];
  box.append(card("× value", datum(number(allowed ? weight * length : 0), weight * length, { id: "contribution" }), `‖value‖ is ${number(length, 2)}`));
  return box;
}

function card(name, value, under) {
  return make("li", {}, make("span", { class: "what" }, name), make("b", {}, value), make("span", { class: "quiet" }, under));
}

const keys = (n) => `${n} key${n === 1 ? "" : "s"}`;
const count = (layer, h, row) => layer.weights(h, row, false).reduce((n, w) => n + !Number.isNaN(w), 0);

// ------------------------------------------------------------------------------- softmax

function softmax(layer, h, row, key, now) {
  return unfold("softmax", "The softmax: what every key gets", () => {
    const weights = layer.weights(h, row, false);
    const scores = [...weights].map((w, k) => (Number.isNaN(w) ? -Infinity : layer.score(h, row, k)));
    const logit = layer.said.sinks?.[h] ?? -Infinity;
    const most = scores.reduce((a, b) => Math.max(a, b), logit);
    const powers = scores.map((score) => Math.exp(score - most));
    const total = powers.reduce((a, b) => a + b, 0) + Math.exp(logit - most);
    const order = scores.map((_, k) => k).filter((k) => scores[k] > -Infinity).sort((a, b) => weights[b] - weights[a] || a - b);
    const rows = order.slice(0, MOST).map((k) => make("tr", { class: k === key ? "chosen" : "" },
      make("td", { class: "name" }, make("bdi", {}, labelOf(now.keyText, [k], "token"))),
      make("td", { class: "quiet" }, String(k)),
      make("td", { class: "number" }, datum(number(scores[k]), scores[k])),
      make("td", { class: "number" }, datum(number(powers[k], 4), powers[k])),
      make("td", { class: "number strong" }, datum(exact(powers[k] / total), powers[k] / total))));
    if (logit > -Infinity) rows.push(make("tr", {}, make("td", {}, "the sink"), make("td"),
      make("td", { class: "number" }, number(logit)), make("td", { class: "number" }, number(Math.exp(logit - most), 4)),
      make("td", { class: "number strong" }, exact(Math.exp(logit - most) / total))));
    const barred = weights.length - order.length;
    return make("div", {},
      make("p", {}, `The denominator is Σ e^(score − ${number(most, 2)}) = `, datum(number(total, 4), total), `, over ${keys(order.length)}${logit > -Infinity ? " and the sink" : ""}${barred ? `; ${barred} may not be attended` : ""}.`),
      table(["token", "at", "score", `e^(score − ${number(most, 2)})`, "weight"], rows),
      order.length > MOST ? make("p", { class: "hint" }, `and ${order.length - MOST} more, of less weight`) : null);
  });
}

// ------------------------------------------------------------------------------- values

function values(layer, h, row, key, to) {
  return unfold("values", "Weight × value: what becomes the output", () => {
    const { depth } = layer;
    const at = (Math.floor(h / layer.each) * layer.keys + key) * depth;
    const value = layer.get("value").subarray(at, at + depth);
    const weight = layer.weight(h, row, key, false) || 0;
    const term = Float64Array.from(value, (x) => x * weight);
    const output = layer.output(h, row, false);
    const said = make("p", { class: "dimension" }, "Point at a dimension for its numbers.");
    const show = (d) => {
      said.textContent = `Dimension ${d}: value ${number(value[d])} × ${exact(weight)} = ${number(term[d])}; with all other keys ${number(output[d])}`;
    };
    return make("div", {},
      make("div", { class: "strips" }, strip(`value ${to}`, value, show), strip("× weight", term, show), strip("output", output, show)),
      said,
      table(["dimension", "value", "× weight", "output: Σ over keys"], [...output].map((x, d) => make("tr", {},
        make("td", { class: "number" }, String(d)), ...[value[d], term[d], x].map((v) => make("td", { class: "number" }, datum(number(v, 4), v)))))));
  });
}

function table(titles, rows) {
  const box = make("div", { class: "scrolls", tabIndex: 0, role: "region" }, make("table", { class: "numbers" },
    make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)))),
    make("tbody", {}, ...rows)));
  box.setAttribute("aria-label", titles.join(", "));
  return box;
}

/** A part that is made when it is opened, and stays open while other words are looked at. */
function unfold(name, title, content) {
  const details = make("details", { class: "unfold", open: open.has(name), data: { name } }, make("summary", {}, title));
  const fill = () => { if (details.open && details.childElementCount === 1) details.append(content()); };
  details.addEventListener("toggle", () => {
    if (details.open) open.add(name);
    else open.delete(name);
    fill();
  });
  fill();
  return details;
}
