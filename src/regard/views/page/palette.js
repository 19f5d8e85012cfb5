// The library's palette: blue beyond what the others give, orange below it; one colour a head.

import { page } from "./data.js";

export const FAINT = 0.04; // shades below this only make a text restless

const dark = matchMedia("(prefers-color-scheme: dark)");

export function ground() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

/** The shade of a value from -1 to 1, and the ink that reads best on it. */
export function shade(value) {
  const [shades, inks] = page.palette[ground()];
  const at = Math.round((Math.max(-1, Math.min(1, value)) + 1) * ((shades.length - 1) / 2));
  return [shades[at], inks[at]];
}

/** A value on the scale that is chosen: as the library's `tone` draws it out, as it is, or on the
 * logarithmic one, where 0.001 is 0 and 1 is 1. */
export function scaled(value, scale) {
  if (scale === "root") return value > 0 ? value ** 0.55 : -((-value) ** 0.8);
  if (scale !== "log" || !value) return value;
  return Math.sign(value) * Math.max(0, 1 + Math.log10(Math.abs(value)) / 3);
}

/** A colour for each of so many heads, alike in lightness: hues in equal steps. */
export function headColour(n, count) {
  const dark = ground() === "dark";
  const hue = (250 + (n * 360) / Math.max(count, 1)) % 360;
  // Neighbours differ in lightness too, for those who see fewer hues.
  const light = (dark ? 0.76 : 0.56) + (n % 2 ? 0.08 : -0.04);
  return oklch(light, dark ? 0.13 : 0.15, (hue * Math.PI) / 180);
}

function oklch(l, chroma, hue) {
  const a = chroma * Math.cos(hue), b = chroma * Math.sin(hue);
  const [x, y, z] = [
    l + 0.3963377774 * a + 0.2158037573 * b,
    l - 0.1055613458 * a - 0.0638541728 * b,
    l - 0.0894841775 * a - 1.291485548 * b,
  ].map((part) => part ** 3);
  const linear = [
    4.0767416621 * x - 3.3077115913 * y + 0.2309699292 * z,
    -1.2684380046 * x + 2.6097574011 * y - 0.3413193965 * z,
    -0.0041960863 * x - 0.7034186147 * y + 1.707614701 * z,
  ];
  const parts = linear.map((part) => {
    const cut = Math.max(0, Math.min(1, part));
    return Math.round(255 * (cut <= 0.0031308 ? 12.92 * cut : 1.055 * cut ** (1 / 2.4) - 0.055));
  });
  return `rgb(${parts.join(" ")})`;
}
