// Any view as a picture: what stands on the screen, drawn again as SVG, and that as PNG.

import { byId, make, makeSvg } from "./dom.js";

export function toast(text) {
  const box = byId("toast");
  box.textContent = text;
  box.classList.add("shown");
  setTimeout(() => box.classList.remove("shown"), 1800);
}

export function buildSaves() {
  for (const place of document.querySelectorAll(".saves")) {
    for (const kind of ["PNG", "SVG"]) {
      const button = make("button", { class: "plain", onclick: () => save(place.dataset.of, kind) }, kind);
      button.setAttribute("aria-label", `Save this view as ${kind}`);
      button.title = `Save this view as ${kind}`;
      place.append(button);
    }
  }
}

async function save(name, kind) {
  const { svg, width, height } = picture(byId(name));
  const file = new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" });
  if (kind === "SVG") return download(file, `regard-${name}.svg`);
  const image = new Image();
  const address = URL.createObjectURL(file);
  image.src = address;
  await image.decode();
  const canvas = make("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  URL.revokeObjectURL(address);
  canvas.toBlob((blob) => download(blob, `regard-${name}.png`), "image/png");
}

function download(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  toast(`Saved ${name}`);
}

/** A section as an SVG: grounds, borders, text and canvases where they stand. */
export function picture(section) {
  const box = section.getBoundingClientRect();
  const [width, height] = [Math.ceil(box.width), Math.ceil(box.height)];
  const svg = makeSvg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` });
  const walk = (element, clip) => {
    const style = getComputedStyle(element);
    if (style.display === "none" || style.visibility === "hidden" || Number(style.opacity) === 0) return;
    if (element !== section && element.matches(".saves, .hint, .inline, .choice, select, input")) return;
    const own = element.getBoundingClientRect();
    if (clip && (own.bottom < clip.top || own.top > clip.bottom)) return;
    const inner = style.overflowY === "auto" || style.overflowY === "scroll" ? own : clip;
    ground(svg, own, style, box);
    if (element instanceof HTMLCanvasElement) {
      svg.append(makeSvg("image", { x: own.left - box.left, y: own.top - box.top, width: own.width, height: own.height, href: element.toDataURL() }));
      return;
    }
    if (element instanceof HTMLImageElement) {
      svg.append(makeSvg("image", { x: own.left - box.left, y: own.top - box.top, width: own.width, height: own.height, preserveAspectRatio: "none", opacity: style.opacity, href: element.src }));
      return;
    }
    if (element instanceof SVGSVGElement) {
      const copy = element.cloneNode(true);
      copy.setAttribute("x", own.left - box.left);
      copy.setAttribute("y", own.top - box.top);
      svg.append(copy);
      return;
    }
    for (const child of element.childNodes) {
      if (child.nodeType === Node.ELEMENT_NODE) walk(child, inner);
      else if (child.nodeType === Node.TEXT_NODE && child.textContent.trim()) text(svg, child, style, box, inner, fitting(element, child.textContent));
    }
  };
  walk(section, null);
  return { svg, width, height };
}

function ground(svg, own, style, box) {
  const fill = style.backgroundColor, border = parseFloat(style.borderTopWidth) || 0;
  const clear = /rgba\(.*, 0\)|transparent/.test(fill);
  if ((clear && !border) || !own.width || !own.height) return;
  const half = border / 2;
  svg.append(makeSvg("rect", {
    x: own.left - box.left + half, y: own.top - box.top + half,
    width: Math.max(0, own.width - border), height: Math.max(0, own.height - border),
    rx: parseFloat(style.borderTopLeftRadius) || 0,
    fill: clear ? "none" : fill,
    ...(border ? { stroke: style.borderTopColor, "stroke-width": border } : {}),
  }));
}

/** What the browser shows of a text that it cuts off with an ellipsis. */
function fitting(element, content) {
  const cut = element.closest(".token, .name, .name button");
  if (!cut || cut.scrollWidth <= cut.clientWidth) return content;
  const most = Math.floor((content.length * cut.clientWidth) / cut.scrollWidth) - 1;
  return content.length > 3 ? `${content.slice(0, Math.max(1, most))}…` : content;
}

/** A text, line by line as the browser has broken it. */
function text(svg, node, style, box, clip, content) {
  const range = document.createRange();
  let begin = 0, line = null;
  const flush = (end) => {
    if (!line || !content.slice(begin, end).trim()) return;
    if (clip && (line.top < clip.top - 4 || line.bottom > clip.bottom + 4)) return;
    const rtl = style.direction === "rtl";
    const out = makeSvg("text", {
      x: (rtl ? line.right : line.left) - box.left, y: line.top - box.top + line.height * 0.78,
      fill: style.color, direction: style.direction, "text-anchor": "start",
      "font-family": style.fontFamily, "font-size": style.fontSize, "font-weight": style.fontWeight,
    });
    out.textContent = content.slice(begin, end).trim();
    svg.append(out);
  };
  range.selectNodeContents(node);
  const lines = range.getClientRects();
  if (lines.length === 1 || content !== node.textContent) {
    [line] = lines;
    return flush(content.length);
  }
  for (let i = 0; i < content.length; i++) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const here = range.getBoundingClientRect();
    if (!here.width && !here.height) continue;
    if (!line) { line = DOMRect.fromRect(here); begin = i; continue; }
    if (Math.abs(here.top - line.top) > here.height / 2) {
      flush(i);
      begin = i;
      line = DOMRect.fromRect(here);
    } else line = new DOMRect(Math.min(line.left, here.left), line.top, Math.max(line.right, here.right) - Math.min(line.left, here.left), line.height);
  }
  flush(content.length);
}
