// Puts the page together, and draws what has changed.

import { page } from "./data.js";
import { byId, make } from "./dom.js";
import { flush, isPreview, onChange, readHash, seen, update } from "./state.js";
import { layers } from "./attention.js";
import { drawChanges } from "./compare.js";
import { drawWords, sentence } from "./words.js";
import { beside, drawRanking, drawsRanking, removedMass } from "./ranking.js";
import { drawHeads } from "./heads.js";
import { drawCalculation } from "./calculation.js";
import { drawLines } from "./lines.js";
import { drawMatrix } from "./matrix.js";
import { buildControls } from "./controls.js";
import { buildSaves, picture } from "./save.js";
import { link } from "./groups.js";
import { exact, quoted } from "./say.js";

function drawFinding() {
  const { parts, one } = sentence();
  const line = byId("sentence");
  line.replaceChildren(...parts.flatMap(([text, word]) => word ? [make("b", {}, make("bdi", {}, quoted(text, false)))]
    : text.split(/(<?\d+ %)/).map((part, n) => (n % 2 ? make("span", { class: "unbroken" }, part) : part))));
  line.dataset.weight = one.weight;
  line.dataset.baseline = one.baseline;
  line.setAttribute("aria-live", isPreview() ? "off" : "polite");
  byId("beside").textContent = beside();
  const now = seen();
  const removed = byId("removed");
  removed.hidden = !now.bare;
  if (now.bare) removed.textContent =
    `Without special tokens${now.heads.some(([l]) => layers[l].said.sinks) ? " and sinks" : ""}: ${exact(removedMass(now))} of the weight went to them and is left out. ` +
    "The rest is renormalised, not the model's.";
}

const inSight = new Set();
const watch = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    inSight[isIntersecting ? "add" : "delete"](target.id);
    if (isIntersecting) finish(target.id);
  }
}, { rootMargin: "25%" });

// What takes longest stands below the rest: it is drawn when the browser has nothing else to do,
// or as soon as it comes in sight.
const LATER = { lines: drawLines, matrix: drawMatrix };
const whenIdle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
const due = new Set();

function catchUp() {
  if (isPreview()) return; // it goes on when the pointer has left
  const [name] = due;
  if (name) finish(name);
  if (due.size) whenIdle(catchUp);
}

/** Draw a view, if that is due. What is hovered elsewhere moves nothing in it. */
function finish(name) {
  if (!isPreview() && due.delete(name)) LATER[name]();
}

/** For paper: everything is drawn, one below the other, on light. */
function onPaper() {
  const root = document.documentElement, { theme } = root.dataset;
  const turn = (begins) => {
    root.toggleAttribute("data-paper", begins);
    arrange();
    if (begins) root.dataset.theme = "light";
    else if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    update({});
  };
  turn(true);
  flush();
  due.delete("matrix");
  due.forEach(finish);
  drawMatrix(true);
  addEventListener("afterprint", () => turn(false), { once: true });
}

function draw(changed) {
  const previewed = isPreview();
  document.body.classList.toggle("previewing", previewed);
  drawFinding();
  if (!previewed) drawChanges();
  drawWords();
  if (drawsRanking(changed, previewed)) drawRanking();
  // What is only previewed is drawn where it can be seen.
  if (!previewed || inSight.has("heads")) drawHeads();
  atRest(previewed && inSight.has("calculation") ? drawCalculation : null);
  if (!previewed) drawCalculation();
  if (previewed) return;
  if (changed.size !== 1 || !changed.has("preview")) for (const name in LATER) due.add(name);
  inSight.forEach(finish);
  if (due.size) whenIdle(catchUp);
}

let waiting = 0;

/** Draw when the pointer rests: while it sweeps over words nobody reads so much. */
function atRest(work) {
  clearTimeout(waiting);
  if (work) waiting = setTimeout(work, 90);
}

// Two columns that fill up each for itself; on a narrow screen one, in the order of reading. The
// order in the document is the one that is seen, also for the keyboard.
const SECTIONS = ["words", "ranking", "calculation", "heads", "matrix", "lines"];
const wide = matchMedia("(min-width: 62rem)");

function arrange() {
  const scrolled = [...document.querySelectorAll(".scroller, .text")].map((box) => [box, box.scrollTop]);
  for (const [n, name] of SECTIONS.entries()) byId(wide.matches && !("paper" in document.documentElement.dataset) ? ["left", "right"][n % 2] : "both").append(byId(name));
  for (const [box, top] of scrolled) box.scrollTop = top; // what moves forgets it
}

function opening() {
  byId("described").textContent = page.described;
  const badge = byId("check");
  badge.textContent = `${page.check.verified ? "✓" : "✗"} ${page.check.line}`;
  badge.className = page.check.verified ? "good" : "bad";
  byId("notes").append(
    make("p", {}, make("b", {}, "How to read it. "),
      "A weight is what one word gives another of its attention; those of a word add up to 100 %. Others: what the other words give it on average. " +
      "As far: what they give at the same distance. Lift: the weight beyond the larger of the two; blue is more, orange less."),
    ...page.notes.map((note) => make("p", {}, note)));
  arrange();
  wide.addEventListener("change", arrange);
  buildControls();
  buildSaves();
  onChange(draw);
  for (const section of document.querySelectorAll(".card")) watch.observe(section);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(new Set(["theme"])));
  addEventListener("beforeprint", onPaper);
  addEventListener("hashchange", () => readHash(location.hash));
  if (location.hash.length > 1) readHash(location.hash);
  draw(new Set(["all"]));
}

opening();

// For the browser's console: regard.weights(layer, head, row) and the like, all counted from 0.
window.regard = {
  page,
  layers,
  state: seen,
  weights: (layer, head, row, bare = false) => [...layers[layer].weights(head, row, bare)],
  scores: (layer, head, row) => Array.from({ length: layers[layer].keys }, (_, key) => layers[layer].score(head, row, key)),
  output: (layer, head, row, bare = false) => [...layers[layer].output(head, row, bare)],
  link: (layer, head, rows, keys, bare = false) => link(layers[layer], head, rows, keys, bare),
  picture: (name) => {
    finish(name);
    return new XMLSerializer().serializeToString(picture(byId(name)).svg);
  },
};
