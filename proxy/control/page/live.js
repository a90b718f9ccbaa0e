// The live page: what a node serves, drawn from two kinds of server-sent events.
//
// `layout`: topics with the borders of their lanes, at the start and whenever they change.
// `state`: figures, loads, owners, lags; the last one counts. Nothing is fetched from elsewhere.
// A lane index is lane * partitions + partition, as everywhere in keylane.

import { showShares } from "./shares.js";
import { drawStrips, laneAt, ownerColor } from "./strips.js";
import { amount, cell, count, sum } from "./text.js";

const byId = (id) => document.getElementById(id);
const view = { topics: [], state: null, group: null, marked: null };
const cards = new Map();

const group = () => view.state?.groups.find((one) => one.name === view.group) ?? null;

const lanesOf = (topic) => group()?.topics.find((one) => one.name === topic.name) ?? null;

function showNode(node) {
  const facts = [
    ["version", node.version],
    ["connections", amount(node.sessions)],
    ["in", amount(node.upstream_bytes_per_s, "B/s")],
    ["out", amount(node.lane_bytes_per_s, "B/s")],
    ["records", amount(node.records_per_s, "/s")],
    ["cache", `${amount(node.cache_bytes, "B")} of ${amount(node.cache_bytes_max, "B")}`],
    ["splitting", `${amount(node.filtering_bytes, "B")} of ${amount(node.filtering_bytes_max, "B")}`],
  ];
  byId("node").replaceChildren(...facts.map(([name, value]) => {
    const pair = document.createElement("div");
    const term = document.createElement("dt");
    const shown = document.createElement("dd");
    term.textContent = name;
    shown.textContent = value;
    pair.append(term, shown);
    return pair;
  }));
}

function showGroups(state) {
  const names = state.groups.map((one) => one.name);
  if (!names.includes(view.group)) view.group = names[0] ?? null;
  const select = byId("group");
  const shown = [...select.options].map((option) => option.value);
  if (shown.join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }
  select.value = view.group ?? "";
  select.disabled = names.length === 0;
  const found = group();
  const more = state.groups_left_out ? `; ${state.groups_left_out} more groups are not shown` : "";
  byId("group-state").textContent = found
    ? `${found.state}, assignor ${found.assignor || "–"}, ${count(found.members.length, "member")}${more}`
    : `no group has read lanes here yet${more}`;
}

// Lanes that came and went with the last generation; shown where keylane deals them out.
function movesOf(member) {
  if (member.gained === null || member.lost === null) return "–";
  return member.gained || member.lost ? `+${member.gained} −${member.lost}` : "kept all";
}

function showMembers() {
  const members = group()?.members ?? [];
  const most = Math.max(1, ...members.map((member) => member.bytes_per_s));
  const body = byId("members");
  const focused = document.activeElement?.dataset?.member;
  body.replaceChildren();
  members.forEach((member, place) => {
    const row = body.insertRow();
    const button = document.createElement("button");
    button.className = "member";
    button.type = "button";
    button.dataset.member = member.id;
    button.setAttribute("aria-pressed", String(view.marked === member.id));
    button.title = "Show this member's lanes";
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = ownerColor(place);
    button.append(swatch, member.label);
    button.addEventListener("click", () => {
      view.marked = view.marked === member.id ? null : member.id;
      showMembers();
      draw();
    });
    cell(row, button);
    cell(row, String(member.lanes));
    const load = document.createElement("span");
    const share = document.createElement("span");
    share.className = "share";
    share.style.width = `${Math.round(90 * member.bytes_per_s / most)}px`;
    load.append(share, amount(member.bytes_per_s, "B/s"));
    cell(row, load);
    cell(row, amount(member.lag));
    cell(row, movesOf(member));
    cell(row, member.host);
    if (member.id === focused) button.focus();
  });
  byId("no-members").hidden = members.length > 0;
}

function cardOf(topic) {
  let card = cards.get(topic.name);
  if (card) return card;
  const root = byId("topic-template").content.cloneNode(true).firstElementChild;
  card = { root, topic, lane: 0, canvas: root.querySelector("canvas") };
  root.querySelector("h2").textContent = topic.name;
  card.canvas.addEventListener("keydown", (event) => onKey(card, event));
  card.canvas.addEventListener("pointermove", (event) => point(card, event));
  card.canvas.addEventListener("pointerdown", (event) => point(card, event));
  root.querySelector(".scroll").setAttribute("aria-label", `Busiest lanes of ${topic.name}`);
  root.querySelector("details").addEventListener("toggle", () => show(card));
  card.canvas.setAttribute("aria-label", `Lanes of ${topic.name}; arrow keys go from lane to lane`);
  cards.set(topic.name, card);
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

function laneText(topic, index) {
  const partition = index % topic.partitions;
  const lane = Math.floor(index / topic.partitions);
  const borders = topic.borders[topic.borders.length === 1 ? 0 : partition];
  const range = topic.range_of ? topic.range_of[lane] : lane;
  const low = range === 0 ? "0" : borders[range - 1];
  const high = String(BigInt(range === topic.lanes - 1 ? "9223372036854775808" : borders[range]) - 1n);
  const state = view.state?.topics.find((one) => one.name === topic.name);
  const own = lanesOf(topic);
  const member = own && own.owner[index] >= 0 ? group().members[own.owner[index]].label : "no member";
  const about = own && !own.lag_is_exact[index] ? "about " : "";
  return `Lane ${index} (partition ${partition}): ${member}, `
    + `${amount(state?.bytes_per_s[index], "B/s")}, lag ${about}${amount(own?.lag[index])}, `
    + `hashes ${low} to ${high}`;
}

function showTable(card, loads, own) {
  const details = card.root.querySelector("details");
  if (!details.open) return;
  const body = details.querySelector("tbody");
  const order = loads.map((load, index) => [load ?? 0, index]);
  order.sort((one, other) => other[0] - one[0] || one[1] - other[1]);
  body.replaceChildren();
  for (const [, index] of order.slice(0, 20)) {
    const row = body.insertRow();
    cell(row, String(index));
    cell(row, String(index % card.topic.partitions));
    cell(row, amount(loads[index], "B/s"));
    cell(row, amount(own?.lag[index]));
    cell(row, own && own.owner[index] >= 0 ? group().members[own.owner[index]].label : "no member");
  }
}

function show(card) {
  const { topic, root, canvas } = card;
  const found = view.state?.topics.find((one) => one.name === topic.name);
  const loads = found?.bytes_per_s ?? [];
  const own = lanesOf(topic);
  const lag = own ? amount(sum(own.lag)) : "–";
  root.querySelector(".figures").textContent =
    `${count(topic.partitions, "partition")}, ${count(topic.lanes, "lane")} each, `
    + `${amount(sum(loads), "B/s")}, lag ${lag}`;
  root.querySelector(".legend").textContent = "top: load · middle: lag · bottom: member";
  const marked = group()?.members.findIndex((member) => member.id === view.marked) ?? -1;
  drawStrips(canvas, topic, { loads, own, marked, lane: card.lane });
  const text = laneText(topic, card.lane);
  root.querySelector(".lane").textContent = text;
  canvas.setAttribute("aria-valuemax", String(topic.partitions * topic.lanes - 1));
  if (canvas.getAttribute("aria-valuenow") !== String(card.lane) || document.activeElement !== canvas) {
    // Not at every state: a screen reader would read the same lane out every two seconds.
    canvas.setAttribute("aria-valuenow", String(card.lane));
    canvas.setAttribute("aria-valuetext", text);
  }
  showTable(card, loads, own);
}

function draw() {
  for (const topic of view.topics) show(cardOf(topic));
}

function onLayout(topics) {
  view.topics = topics;
  for (const topic of topics) {
    const card = cardOf(topic);
    card.topic = topic;
    card.lane = Math.min(card.lane, topic.partitions * topic.lanes - 1);
  }
  const names = new Set(topics.map((topic) => topic.name));
  for (const name of [...cards.keys()]) if (!names.has(name)) cards.delete(name);
  byId("topics").replaceChildren(...topics.map((topic) => cardOf(topic).root));
  byId("no-topics").hidden = topics.length > 0;
  draw();
}

function onState(state) {
  view.state = state;
  showNode(state.node);
  showGroups(state);
  showMembers();
  showShares(state);
  draw();
}

function tellLink(kind, text) {
  const link = byId("link");
  if (link.textContent === text) return;
  link.className = kind;
  link.textContent = text;
}

const source = new EventSource("page/events");
source.addEventListener("layout", (event) => onLayout(JSON.parse(event.data)));
source.addEventListener("state", (event) => {
  tellLink("live", "live");
  onState(JSON.parse(event.data));
});
source.addEventListener("error", () => tellLink("lost", "connection lost, trying again"));
byId("group").addEventListener("change", (event) => {
  view.group = event.target.value;
  view.marked = null;
  if (view.state) onState(view.state);
});
new ResizeObserver(draw).observe(byId("topics"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
