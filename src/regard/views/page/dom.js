// Making elements: text is always text, never markup.

export function byId(id) {
  return document.getElementById(id);
}

/** An element with properties, and children that are elements or text. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  set(element, properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function set(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "style") Object.assign(element.style, value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "class") element.className = value;
    else if (name.startsWith("aria-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
}

/** A number as people read it, with its exact value beside it for whoever copies or tests. */
export function datum(shown, value, properties = {}) {
  return make("data", { ...properties, value: String(value) }, shown);
}

let brush = null, family = null;

/** How wide the widest of some texts is, in pixels. */
export function widest(texts, size, weight = 400) {
  brush ??= make("canvas").getContext("2d");
  family ??= getComputedStyle(document.body).fontFamily;
  brush.font = `${weight} ${size}px ${family}`;
  return texts.reduce((most, text) => Math.max(most, brush.measureText(text).width), 0);
}

/** Move the one tab stop of a group of elements. */
export function rove(elements, at, focus) {
  elements.forEach((element, n) => (element.tabIndex = n === at ? 0 : -1));
  if (focus) elements[at]?.focus({ preventScroll: false });
}

/** What an arrow key means in a row of elements that wraps into lines. */
export function nextByArrow(elements, at, key, rightToLeft) {
  const last = elements.length - 1;
  const on = rightToLeft ? "ArrowLeft" : "ArrowRight";
  const back = rightToLeft ? "ArrowRight" : "ArrowLeft";
  if (key === "Home") return 0;
  if (key === "End") return last;
  if (key === on) return Math.min(at + 1, last);
  if (key === back) return Math.max(at - 1, 0);
  if (key !== "ArrowUp" && key !== "ArrowDown") return -1;
  const here = elements[at].getBoundingClientRect();
  const middle = (here.left + here.right) / 2;
  const step = key === "ArrowDown" ? 1 : -1;
  let best = at, line = null, apart = Infinity;
  for (let n = at + step; n >= 0 && n <= last; n += step) {
    const box = elements[n].getBoundingClientRect();
    if (Math.abs(box.top - here.top) < here.height / 2) continue;
    line ??= box.top;
    if (Math.abs(box.top - line) > here.height / 2) break;
    const far = Math.abs((box.left + box.right) / 2 - middle);
    if (far < apart) [best, apart] = [n, far];
  }
  return best;
}
