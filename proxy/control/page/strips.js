// Strips over the hash space: one row per partition, one segment per lane, in three bands.

const ROW_MAX = 34, ROW_MIN = 9, HEIGHT_WANTED = 420, GAP = 3;
const HASH_COUNT = 2 ** 63;
const BANDS = { load: 0.5, lag: 0.14 };  // of a row's height; the rest is the member

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

// Twelve colours that differ to any kind of sight, then hues by the golden angle.
const OWNERS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb7733",
  "#77aadd", "#ddaa33", "#44bb99", "#99667b", "#8888cc"];

export const ownerColor = (place) =>
  OWNERS[place] ?? `hsl(${Math.round(place * 137.508) % 360} 50% 55%)`;

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

export function drawStrips(canvas, topic, { loads, own, marked, lane }) {
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
  const shades = heat(tone("--heat-low"), tone("--heat-high"));
  const lags = heat(tone("--heat-low"), tone("--ink"));
  const unread = tone("--heat-low");
  const most = loads.reduce((top, load) => Math.max(top, load ?? 0), 0);
  const mostLag = own ? own.lag.reduce((top, lag) => Math.max(top, lag ?? 0), 0) : 0;
  const inner = height - (height > 14 ? GAP : 1);
  const loadHeight = Math.round(inner * BANDS.load), lagHeight = Math.max(2, Math.round(inner * BANDS.lag));
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
      pen.globalAlpha = marked >= 0 && owner !== marked ? 0.25 : 1;
      pen.fillStyle = shades[level(loads[index] ?? 0, most)];
      pen.fillRect(left, top, wide, loadHeight);
      pen.fillStyle = lags[level(own?.lag[index] ?? 0, mostLag)];
      pen.fillRect(left, top + loadHeight, wide, lagHeight);
      pen.fillStyle = owner >= 0 ? ownerColor(owner) : unread;
      pen.fillRect(left, top + loadHeight + lagHeight, wide, inner - loadHeight - lagHeight);
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
