// Strips over the hash space: one row per partition, one segment per lane, in three bands: load in
// a neutral hue (of the topic's own scale), trouble in red, and the member's colour.

const ROW_MAX = 38, ROW_MIN = 9, HEIGHT_WANTED = 420, GAP = 3;
const HASH_COUNT = 2 ** 63;
const BANDS = { load: 0.42, trouble: 0.26 };  // of a row's height; the rest is the member

export const stripsHeight = (topic) => rowHeight(topic.partitions) * topic.partitions;

const rowHeight = (partitions) =>
  Math.max(ROW_MIN, Math.min(ROW_MAX, Math.floor(HEIGHT_WANTED / partitions)));

const fractions = new WeakMap();

// Right edge of each lane as a share of the hash space, per partition.
function edgesOf(topic, partition) {
  let rows = fractions.get(topic);
  if (!rows) {
    rows = topic.borders.map((row) => [...row.map((border) => Number(border) / HASH_COUNT), 1]);
    fractions.set(topic, rows);
  }
  return rows[rows.length === 1 ? 0 : partition];
}

// Colours of members: none of them is red, which means trouble and nothing else.
const OWNERS = ["#4477aa", "#ccbb44", "#228833", "#66ccee", "#8e6bbf", "#44bb99", "#997a3d",
  "#77aadd", "#a9b83c", "#2f7f86", "#b7a6d9", "#5c6f8a"];

// Then hues by the golden angle, from yellow over green and blue to violet.
export const ownerColor = (place) =>
  OWNERS[place] ?? `hsl(${50 + Math.round(place * 137.508) % 230} 42% 55%)`;

export function laneAt(topic, box, x, y) {
  const partition = Math.floor(y / rowHeight(topic.partitions));
  if (partition < 0 || partition >= topic.partitions || x < 0 || x > box.width) return null;
  const share = x / box.width;
  const edges = edgesOf(topic, partition);
  let low = 0, high = edges.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= share) low = middle + 1; else high = middle;
  }
  return low * topic.partitions + partition;
}

// Linear mixing of two #rrggbb colours.
function mix(from, to, share) {
  const part = (color, place) => parseInt(color.slice(1 + 2 * place, 3 + 2 * place), 16);
  const channel = (place) =>
    Math.round(part(from, place) + (part(to, place) - part(from, place)) * share);
  return `rgb(${channel(0)} ${channel(1)} ${channel(2)})`;
}

const heat = (low, high) => Array.from({ length: 65 }, (_, step) => mix(low, high, step / 64));

// What is drawn for a value beside the most there is: the square root shows small ones too.
const level = (value, most) => (value > 0 && most > 0 ? Math.max(4, Math.round(64 * Math.sqrt(value / most))) : 0);

// Hatched red, where a member is stuck: differs from "far behind" by more than colour.
function hatch(pen, red, ground) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  brush.fillStyle = red;
  brush.fillRect(0, 0, 6, 6);
  brush.strokeStyle = ground;
  brush.lineWidth = 1.6;
  brush.beginPath();
  for (const start of [-6, 0, 6]) { brush.moveTo(start, 6); brush.lineTo(start + 6, 0); }
  brush.stroke();
  return pen.createPattern(tile, "repeat");
}

// Trouble of a lane: "stuck", "far", "alone" (records wait and no member reads them) or null.
export function troubleOf(own, index, members, behindS) {
  if (!own || !own.lag[index]) return null;
  const owner = own.owner[index];
  if (owner >= 0 && members[owner]?.is_stuck) return "stuck";
  if (owner < 0 && members.length) return "alone";
  const lagS = own.lag_s?.[index];
  return lagS !== null && lagS !== undefined && lagS >= behindS ? "far" : null;
}

export function drawStrips(canvas, topic, { loads, own, members, marked, lane, behindS }) {
  const height = rowHeight(topic.partitions);
  const width = canvas.parentElement.clientWidth;
  const ratio = Math.min(2, devicePixelRatio || 1);
  canvas.style.height = `${height * topic.partitions}px`;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = height * topic.partitions * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const tone = (name) => style.getPropertyValue(name).trim();
  const shades = heat(tone("--load-low"), tone("--load-high"));
  const unread = tone("--unread"), red = tone("--trouble");
  const marks = { stuck: hatch(pen, red, tone("--card")), alone: red, far: red };
  const most = loads.reduce((top, load) => Math.max(top, load ?? 0), 0);
  const inner = height - (height > 14 ? GAP : 1);
  const loadHeight = Math.round(inner * BANDS.load);
  const markHeight = Math.max(2, Math.round(inner * BANDS.trouble));
  for (let partition = 0; partition < topic.partitions; partition += 1) {
    const edges = edgesOf(topic, partition);
    const top = partition * height;
    let left = 0;
    for (let number = 0; number < topic.lanes; number += 1) {
      const index = number * topic.partitions + partition;
      const right = edges[number] * width;
      const hair = right - left > 6 ? 1 : 0;  // a line between lanes where there is room
      const wide = Math.max(0.5, right - left - hair);
      const owner = own ? own.owner[index] : -1;
      const trouble = troubleOf(own, index, members, behindS);
      pen.globalAlpha = marked >= 0 && owner !== marked ? 0.25 : 1;
      pen.fillStyle = shades[level(loads[index] ?? 0, most)];
      pen.fillRect(left, top, wide, loadHeight);
      pen.fillStyle = trouble ? marks[trouble] : shades[0];
      pen.fillRect(left, top + loadHeight, wide, markHeight);
      pen.fillStyle = owner >= 0 ? ownerColor(owner) : unread;
      pen.fillRect(left, top + loadHeight + markHeight, wide, inner - loadHeight - markHeight);
      left = right;
    }
  }
  pen.globalAlpha = 1;
  markLane(pen, topic, lane, { height, inner, width, color: tone("--focus") });
}

function markLane(pen, topic, lane, { height, inner, width, color }) {
  const partition = lane % topic.partitions;
  const number = Math.floor(lane / topic.partitions);
  const edges = edgesOf(topic, partition);
  const left = number ? edges[number - 1] * width : 0;
  pen.strokeStyle = color;
  pen.lineWidth = 2;
  pen.strokeRect(left + 1, partition * height + 1, Math.max(2, edges[number] * width - left - 2), inner - 2);
}
