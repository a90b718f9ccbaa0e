// Figures, times and small elements, for all parts of the page.

export const NONE = "–";

export const amount = (value, unit = "") => {
  if (value === null || value === undefined) return NONE;
  const steps = ["", "k", "M", "G", "T"];
  let step = 0;
  while (Math.abs(value) >= 1000 && step < steps.length - 1) { value /= 1000; step += 1; }
  const digits = (step > 0 && Math.abs(value) < 100) || (value && Math.abs(value) < 10 && value % 1)
    ? 1 : 0;
  return `${value.toFixed(digits)}${steps[step] || unit ? " " : ""}${steps[step]}${unit}`;
};

// A count that is exact, or "about" so much.
export const lagText = (value, isExact) =>
  `${value && isExact === false ? "~" : ""}${amount(value)}`;

export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

export const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);

const two = (number) => String(number).padStart(2, "0");

// A duration in one or two units: 0.4 s, 12 s, 3 min 20 s, 2 h 05 min, 3 d 04 h.
export const duration = (seconds) => {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 9.95) return `${seconds ? seconds.toFixed(1) : 0} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${two(whole % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${two(minutes % 60)} min`;
  return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
};

// How long ago, in one unit: a figure that changes every second draws the eye for nothing.
export const age = (seconds) => {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1) return "now";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
};

const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");

// 15:02:11, and the day before it where it is another one.
export const clock = (ms, nowMs = Date.now()) => {
  if (ms === null || ms === undefined) return NONE;
  const at = new Date(ms);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return at.toDateString() === new Date(nowMs).toDateString()
    ? time : `${at.getDate()} ${MONTHS[at.getMonth()]} ${time}`;
};

export const cell = (row, content, kind) => {
  const td = row.insertCell();
  if (kind) td.className = kind;
  if (content instanceof Node) td.append(content); else td.textContent = content;
  return td;
};

export const byId = (id) => document.getElementById(id);

export function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Writes only what changed: the same text again would have a screen reader read it out again.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

// Children by key: a row keeps its element, and so its focus, while figures change around it.
export function keyed(parent, items, keyOf, make, update) {
  const known = parent.keyedRows ?? new Map();
  const rows = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const row = known.get(key) ?? make(item);
    rows.set(key, row);
    update(row, item);
  }
  for (const [key, row] of known) if (!rows.has(key)) row.remove();
  let place = parent.firstElementChild;
  for (const row of rows.values()) {
    if (row === place) place = place.nextElementSibling;
    else parent.insertBefore(row, place);
  }
  parent.keyedRows = rows;
}
