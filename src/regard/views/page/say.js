// Numbers and sentences, as the library writes them.

export function percent(weight) {
  if (!Number.isFinite(weight)) return "–";
  const shown = (100 * weight).toFixed(0);
  return shown === "0" && weight > 0 ? "<1 %" : `${shown === "-0" ? "0" : shown} %`;
}

/** More digits, for where one number is looked at. */
export function exact(weight) {
  if (!Number.isFinite(weight)) return "–";
  return weight !== 0 && Math.abs(weight) < 1e-4 ? signed(weight.toExponential(2)) : signed((100 * weight).toFixed(2)) + " %";
}

export function points(lift) {
  if (!Number.isFinite(lift)) return "–";
  if (Math.abs(lift) < 0.005) return "0";
  return `${lift > 0 ? "+" : "−"}${Math.abs(100 * lift).toFixed(0)}`;
}

export function number(value, digits = 3) {
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  if (Number.isNaN(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 10 ** -digits))
    return signed(value.toExponential(2));
  return signed(value.toFixed(digits));
}

export function signed(text) {
  return text.replace("-", "−");
}

const LONG = 80, FIRST = 40; // a longer label is shown by its first letters

/** A label as it stands in a view: of a very long one the first letters, and how many it has. */
export function folded(label) {
  if (label.length <= LONG) return label;
  const letters = [...label];
  return `${letters.slice(0, FIRST).join("")}… (${letters.length} characters)`;
}

const RTL = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** A label in quotes; one that runs from right to left isolated from the numbers beside it. */
export function quoted(label, isolated = true) {
  const most = 70;
  const shown = label.length > most ? `“${[...label].slice(0, most).join("")}…”` : `“${label}”`;
  return isolated && RTL.test(label) ? `\u2068${shown}\u2069` : shown;
}

export function tokens(count) {
  return `${count} token${count === 1 ? "" : "s"}`;
}

export function where(positions) {
  const [first, last] = [positions[0], positions[positions.length - 1]];
  return first === last ? String(first) : `${first}–${last}`;
}
