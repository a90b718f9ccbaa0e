// Cards of topics: figures, a line of ten minutes, the strips, the busiest lanes. What is out of
// view is not drawn.

import { makeSpark, showSpark } from "./spark.js";
import { drawStrips, laneAt, stripsHeight, troubleOf } from "./strips.js";
import { amount, byId, cell, count, duration, element, lagText, setText, sum } from "./text.js";

const CARDS = 12;      // at first; a button shows more
const BUSIEST = 20;
const WORDS = { stuck: "stuck", far: "far behind", alone: "no member reads it" };

const cards = new Map();
let shownMax = CARDS, shownFor = "";
let context = { members: [], own: new Map(), loads: new Map(), behindS: 60, marked: -1, history: new Map() };

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const card = cards.get(entry.target.dataset.topic);
    if (!card) continue;
    card.isInView = entry.isIntersecting;
    if (card.isInView) show(card);
  }
}, { rootMargin: "200px" });

export const topicsInView = () =>
  [...cards.values()].filter((card) => card.isInView).map((card) => card.topic.name);

function makeCard(topic) {
  const root = byId("topic-template").content.cloneNode(true).firstElementChild;
  const card = { root, topic, lane: 0, canvas: root.querySelector("canvas"), isInView: false };
  root.dataset.topic = topic.name;
  const link = element("a", "", topic.name);
  link.href = `#topic=${encodeURIComponent(topic.name)}`;
  root.querySelector(".topic-name").append(link);
  root.querySelector(".topic-spark").append(makeSpark());
  card.canvas.addEventListener("keydown", (event) => onKey(card, event));
  card.canvas.addEventListener("pointermove", (event) => point(card, event));
  card.canvas.addEventListener("pointerdown", (event) => point(card, event));
  card.canvas.setAttribute("aria-label", `Lanes of ${topic.name}; arrow keys go from lane to lane`);
  root.querySelector(".scroll").setAttribute("aria-label", `Busiest lanes of ${topic.name}`);
  root.querySelector("details").addEventListener("toggle", () => show(card));
  cards.set(topic.name, card);
  card.canvas.style.height = `${stripsHeight(topic)}px`;  // so that the page keeps its length
  watcher.observe(root);
  return card;
}

function point(card, event) {
  const box = card.canvas.getBoundingClientRect();
  const found = laneAt(card.topic, box, event.clientX - box.left, event.clientY - box.top);
  if (found !== null && found !== card.lane) { card.lane = found; show(card); }
}

function onKey(card, event) {
  const { partitions, lanes } = card.topic;
  const total = partitions * lanes;
  const steps = {
    ArrowRight: partitions, ArrowLeft: -partitions, ArrowDown: 1, ArrowUp: -1,
  };
  let next = null;
  if (event.key in steps) next = (card.lane + steps[event.key] + total) % total;
  if (event.key === "Home") next = card.lane % partitions;
  if (event.key === "End") next = (lanes - 1) * partitions + card.lane % partitions;
  if (next === null) return;
  event.preventDefault();
  card.lane = next;
  show(card);
}

const memberOf = (own, index) => context.members[own?.owner[index] ?? -1]?.label ?? "no member";

function laneText(topic, index, own) {
  const partition = index % topic.partitions;
  const lane = Math.floor(index / topic.partitions);
  const borders = topic.borders[topic.borders.length === 1 ? 0 : partition];
  const range = topic.range_of ? topic.range_of[lane] : lane;
  const low = range === 0 ? "0" : borders[range - 1];
  const high = String(BigInt(range === topic.lanes - 1 ? "9223372036854775808" : borders[range]) - 1n);
  const trouble = troubleOf(own, index, context.members, context.behindS);
  return [
    `Lane ${index} (partition ${partition}): ${trouble ? `${WORDS[trouble]}, ` : ""}${memberOf(own, index)}`,
    amount(context.loads.get(topic.name)?.[index], "B/s"),
    `lag ${lagText(own?.lag[index], Boolean(own?.lag_is_exact[index]))}`,
    ...(own?.lag_s?.[index] ? [`${duration(own.lag_s[index])} behind`] : []),
    `hashes ${low} to ${high}`,
  ].join(", ");
}

function showTable(card, loads, own) {
  const details = card.root.querySelector("details");
  if (!details.open) return;
  const body = details.querySelector("tbody");
  const order = loads.map((load, index) => [load ?? 0, index]);
  order.sort((one, other) => other[0] - one[0] || one[1] - other[1]);
  body.replaceChildren();
  for (const [, index] of order.slice(0, BUSIEST)) {
    const row = body.insertRow();
    cell(row, String(index), "number");
    cell(row, String(index % card.topic.partitions), "number");
    cell(row, amount(loads[index], "B/s"), "number");
    cell(row, lagText(own?.lag[index], Boolean(own?.lag_is_exact[index])), "number");
    cell(row, duration(own?.lag_s?.[index]), "number");
    cell(row, memberOf(own, index));
  }
}

const troubles = (own) => (own ? own.lag.reduce((found, _, index) => found
  + Number(troubleOf(own, index, context.members, context.behindS) !== null), 0) : 0);

function show(card) {
  if (!card.isInView) return;
  const { topic, root, canvas } = card;
  const loads = context.loads.get(topic.name) ?? [];
  const own = context.own.get(topic.name);
  setText(root.querySelector(".figures"),
    `${count(topic.partitions, "partition")}, ${count(topic.lanes, "lane")} each, `
    + `in flow ${amount(sum(loads), "B/s")}, lag ${own ? amount(sum(own.lag)) : "–"}`);
  const bad = troubles(own);
  setText(root.querySelector(".topic-badge"), bad ? `${count(bad, "lane")} in trouble` : "");
  const flow = context.history.get(topic.name) ?? [];
  const most = flow.reduce((top, value) => Math.max(top, value ?? 0), 0);
  showSpark(root.querySelector("svg"), flow, {
    most, label: flow.length ? `In flow in ten minutes, at most ${amount(most, "B/s")}` : "No flow is known yet",
  });
  drawStrips(canvas, topic, { ...context, loads, own, lane: card.lane });
  const text = laneText(topic, card.lane, own);
  setText(root.querySelector(".lane"), text);
  canvas.setAttribute("aria-valuemax", String(topic.partitions * topic.lanes - 1));
  if (canvas.getAttribute("aria-valuenow") !== String(card.lane) || document.activeElement !== canvas) {
    // Not at every state: a screen reader would read the same lane out every two seconds.
    canvas.setAttribute("aria-valuenow", String(card.lane));
    canvas.setAttribute("aria-valuetext", text);
  }
  showTable(card, loads, own);
}

// Cards of these layouts, in their order. `title` says what they are the topics of.
export function showTopics(layouts, given, title) {
  context = given;
  if (shownFor !== title) { shownFor = title; shownMax = CARDS; }
  const shown = layouts.slice(0, shownMax);
  const names = new Set(shown.map((topic) => topic.name));
  for (const [name, card] of cards) {
    if (!names.has(name)) { watcher.unobserve(card.root); card.root.remove(); cards.delete(name); }
  }
  const box = byId("topics");
  shown.forEach((topic, place) => {
    const card = cards.get(topic.name) ?? makeCard(topic);
    card.topic = topic;
    card.lane = Math.min(card.lane, topic.partitions * topic.lanes - 1);
    if (box.children[place] !== card.root) box.insertBefore(card.root, box.children[place] ?? null);
    show(card);
  });
  const more = byId("more-topics");
  more.hidden = layouts.length <= shownMax;
  setText(more, `Show ${count(Math.min(4 * CARDS, layouts.length - shownMax), "more topic")} of ${layouts.length}`);
  more.onclick = () => { shownMax += 4 * CARDS; showTopics(layouts, context, title); };
}

export const redraw = () => { for (const card of cards.values()) show(card); };
