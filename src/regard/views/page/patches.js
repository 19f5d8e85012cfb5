// An image: its patches as the grid that they are, over the picture where the page has it.

import { make } from "./dom.js";
import { shade } from "./palette.js";

const MANY = 16, EVERY = 5; // of more rows or columns every fifth is numbered

/** Place the last elements of a text by row and column; what stands before them belongs to none. */
export function laidOut(box, chips, [rows, columns], picture) {
  const patches = chips.slice(-rows * columns);
  const before = chips.slice(0, -rows * columns);
  const frame = make("div", { class: `patches${picture ? " pictured" : ""}` });
  frame.setAttribute("role", "presentation");
  frame.style.setProperty("--columns", columns);
  if (picture) frame.append(make("img", { src: picture, alt: "", style: { gridArea: `2 / 2 / span ${rows} / span ${columns}` } }));
  const axis = (count, area) => Array.from({ length: count }, (_, n) => {
    const mark = make("small", { class: "axis", style: { gridArea: area(n + 2) } }, count <= MANY || n % EVERY === 0 ? String(n) : "");
    mark.setAttribute("aria-hidden", "true");
    return mark;
  });
  patches.forEach((chip, n) => {
    chip.className = "word patch";
    chip.style.gridArea = `${Math.floor(n / columns) + 2} / ${(n % columns) + 2}`;
  });
  frame.append(...axis(columns, (n) => `1 / ${n}`), ...axis(rows, (n) => `${n} / 1`), ...patches);
  box.replaceChildren(...before.flatMap((chip) => [chip, " "]), frame);
}

/** The shade of a value as a veil, through which a picture is seen. */
export function veiled(value) {
  const strength = Math.round(255 * Math.min(1, Math.abs(value))).toString(16).padStart(2, "0");
  return [`${shade(Math.sign(value))[0]}${strength}`, ""];
}
