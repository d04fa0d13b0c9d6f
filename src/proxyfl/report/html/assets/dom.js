// Elements, numbers as text, the box that shows values. Text enters the page as text only, never as markup.
const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;

function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

// Control characters, marks that turn the direction of text and what nobody sees, as escapes: with them an
// untrusted name would look like another. As core/text.py has it for the terminal.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\u{e0100}-\u{e01ef}]/gu;

function visible(text) {
  return text.replace(UNSEEN, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "paint") for (const [part, colour] of Object.entries(value)) node.style.setProperty(part, colour);
    else node.setAttribute(key, value === true ? "" : visible(String(value)));
  }
  const there = children.filter((child) => child !== null && child !== undefined);
  node.append(...there.map((child) => (child instanceof Node ? child : visible(String(child)))));
  return node;
}

const colour = (name) => `var(--${name})`;
const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`);
const whole = (value) => Math.round(value).toLocaleString("en-GB");

function short(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return whole(value);
  return size >= 0.001 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  const two = (value) => String(value).padStart(2, "0");
  if (minutes < 60) return `${minutes}:${two(Math.round(seconds) % 60)} min`;
  return `${Math.floor(minutes / 60)}:${two(minutes % 60)} h`;
}

function clipped(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

const counted = (value, thing) => `${whole(value)} ${thing}${value === 1 ? "" : "s"}`;

// A table that scrolls sideways by itself where the page is narrow. Cells are text or nodes; columns that are
// `spare` are left out on phones. The last cell of a short row reaches to the end, as text.
function table(heads, rows, { caption = "", numeric = () => true, spare = () => false, kind = null } = {}) {
  const looks = (place) => [place > 0 && numeric(place) ? "number" : "", spare(place) ? "spare" : ""].filter(Boolean).join(" ") || null;
  const cell = (tag, value, place) => el(tag, { class: looks(place), scope: tag === "th" ? "col" : null }, value);
  const rest = (value, place) => el("td", { colspan: heads.length - place }, value);
  const head = el("thead", {}, el("tr", {}, ...heads.map((text, place) => cell("th", text, place))));
  const body = el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((value, place) =>
    place === 0 ? el("th", { scope: "row" }, value) : place + 1 === row.length && row.length < heads.length ? rest(value, place) : cell("td", value, place)))));
  const scrolled = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || "table" }, el("table", { class: kind }, head, body));
  return caption ? el("div", {}, el("p", { class: "note" }, caption), scrolled) : scrolled;
}

const tip = el("div", { id: "tip", role: "status", "aria-live": "polite", hidden: true });

// Lines are texts, or [text, colour, fill] for one with a patch like that.
function showTip(x, y, lines) {
  tip.replaceChildren(...lines.map((line) => {
    const [text, patch, kind] = Array.isArray(line) ? line : [line];
    return el("div", {}, patch ? el("i", { class: kind || null, paint: { "--tone": patch } }) : null, text);
  }));
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), edge = document.documentElement;
  const left = x + 14 + box.width > edge.clientWidth ? x - box.width - 14 : x + 14;
  const top = Math.min(y + 14, edge.clientHeight - box.height - 4);
  tip.style.left = `${Math.max(4, Math.min(left, edge.clientWidth - box.width - 4))}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

// What keys have asked for moves along when the page scrolls; what the pointer has found is left behind.
let askedAgain = null;

function hideTip() {
  tip.hidden = true;
  askedAgain = null;
}

addEventListener("scroll", () => (askedAgain ? askedAgain() : hideTip()), { passive: true });

// A figure that draws itself as wide as it is, again when that changes. A note may depend on what is drawn.
function figure(title, draw, note = "") {
  const place = el("div", { class: "chart" }), words = note ? el("p", { class: "note" }, typeof note === "function" ? "" : note) : null;
  const made = el("figure", {}, title ? el("figcaption", {}, title) : null, place, words);
  let drawn = 0;
  new ResizeObserver(() => requestAnimationFrame(() => {
    const width = Math.floor(place.clientWidth);
    if (width > 0 && width !== drawn) {
      drawn = width;
      place.replaceChildren(draw(width));
      if (typeof note === "function") words.textContent = visible(note(width));
    }
  })).observe(place);
  return made;
}

// Pointer and keys on a picture: `at` finds what is under a point, `steps` counts what arrow keys walk through,
// `tell(index)` gives [x, y, lines] of one of them or null, `mark` shows it.
function explorable(picture, { at, steps, tell, mark = () => {} }) {
  let current = -1;
  const show = (index) => {
    const told = index === null ? null : tell(index);
    if (!told) return leave();
    current = index;
    mark(index);
    const box = picture.getBoundingClientRect();
    showTip(box.left + told[0], box.top + told[1], told[2]);
  };
  const leave = () => {
    mark(-1);
    hideTip();
  };
  const point = (event) => {
    const box = picture.getBoundingClientRect();
    askedAgain = null;
    show(at(event.clientX - box.left, event.clientY - box.top));
  };
  picture.setAttribute("tabindex", "0");
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerdown", point);
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", leave);
  picture.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") leave();
    if (!move) return;
    event.preventDefault();
    show((current + move + steps) % steps);
    askedAgain = tip.hidden ? null : () => show(current);
  });
  return picture;
}
