// What the page carries: a header, and arrays as base64, each decoded when first used.

export const page = JSON.parse(document.getElementById("page").textContent);

const carried = document.querySelectorAll('script[type="text/plain"]');
const decoded = new Map();

/** The typed array that a reference of the header means. */
export function array(reference) {
  if (!decoded.has(reference.at)) {
    const element = carried[reference.at];
    decoded.set(reference.at, typed(reference.kind, bytes(element.textContent)));
    element.textContent = ""; // it is kept once
  }
  return decoded.get(reference.at);
}

function bytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

function typed(kind, raw) {
  switch (kind) {
    case "f4": return new Float32Array(raw.buffer);
    case "f8": return new Float64Array(raw.buffer);
    case "i4": return new Int32Array(raw.buffer);
    case "u1": return raw;
    case "f2": return fromHalf(new Uint16Array(raw.buffer));
    case "b2": return fromBrain(new Uint16Array(raw.buffer));
  }
  throw new Error(`an array of kind ${kind}`);
}

/** bfloat16 is the upper half of float32. */
function fromBrain(bits) {
  const wide = new Uint32Array(bits.length);
  for (let i = 0; i < bits.length; i++) wide[i] = bits[i] << 16;
  return new Float32Array(wide.buffer);
}

/** float16, by a table of all its 65536 values. */
function fromHalf(bits) {
  const table = new Float32Array(65536);
  for (let n = 0; n < 65536; n++) {
    const exponent = (n >> 10) & 31;
    const fraction = n & 1023;
    const size =
      exponent === 0 ? fraction * 2 ** -24
      : exponent === 31 ? (fraction ? NaN : Infinity)
      : (1 + fraction / 1024) * 2 ** (exponent - 15);
    table[n] = n & 32768 ? -size : size;
  }
  return Float32Array.from(bits, (n) => table[n]);
}
