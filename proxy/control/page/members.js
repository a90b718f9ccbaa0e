// The table of members, those that are furthest behind first.

import { byLag, isFar } from "./model.js";
import { makeSpark, showSpark } from "./spark.js";
import { ownerColor } from "./strips.js";
import { NONE, age, amount, byId, count, duration, element, keyed, lagText, setText, setAttribute }
  from "./text.js";

const SHOWN = 50;
let shownMax = SHOWN;

const COLUMNS = [
  ["lag", "Lag"], ["behind", "Behind"], ["spark", "Lag, 10 min"], ["consumed", "Done/s"],
  ["flow", "In flow"], ["commit", "Last commit"], ["lanes", "Lanes"],
];

// Lanes that came and went with the last generation, where keylane deals them out.
const movesOf = (member) => (member.gained || member.lost ? `+${member.gained} −${member.lost}` : "");

function make(onMark) {
  const row = element("tr");
  row.setAttribute("role", "row");
  const head = element("th", "identity");
  head.scope = "row";
  head.setAttribute("role", "rowheader");
  const button = element("button", "member");
  button.type = "button";
  button.append(element("span", "swatch"), element("span", "label"));
  button.addEventListener("click", () => onMark(row.dataset.member));
  head.append(button, element("span", "badge"), element("span", "host quiet"));
  row.append(head);
  for (const [kind, label] of COLUMNS) {
    const td = element("td", kind);
    td.setAttribute("role", "cell");
    td.dataset.label = label;
    if (kind === "spark") td.append(makeSpark());
    else if (kind === "flow") td.append(element("span", "figure"), element("span", "track"));
    else if (kind === "lanes") td.append(element("span", "held"), element("span", "moved quiet"));
    row.append(td);
  }
  row.querySelector(".track").append(element("span", "bar"));
  return row;
}

const badgeOf = (member, behindS) => {
  if (member.is_stuck) return ["stuck", `stuck ${age(member.stuck_s)}`];
  if (member.lag && isFar(member.lag_s, behindS)) return ["far", "far behind"];
  return ["", ""];
};

function update(row, member, { places, marked, history, most, mostLag, nowMs, behindS }) {
  const part = (kind) => row.querySelector(`.${kind}`);
  const figure = (kind, text, isBad = false) => {
    setText(part(kind), text);
    part(kind).classList.toggle("bad", isBad);
  };
  row.dataset.member = member.id;
  part("swatch").style.background = ownerColor(places.get(member.id));
  setText(part("label"), member.label);
  setText(part("host"), [member.host, member.bypasses_keylane ? "connects to brokers directly" : ""]
    .filter(Boolean).join(", "));
  setAttribute(part("member"), "aria-pressed", String(marked === member.id));
  part("member").title = `Show the lanes of ${member.label}`;
  const [kind, word] = badgeOf(member, behindS);
  part("badge").className = `badge ${kind}`;
  setText(part("badge"), word);
  row.className = kind;
  const isBehind = Boolean(member.lag) && isFar(member.lag_s, behindS);
  figure("lag", lagText(member.lag, member.lag_is_exact), kind !== "");
  figure("behind", duration(member.lag_s), isBehind);
  figure("consumed", amount(member.consumed_per_s, "/s"), kind === "stuck");
  setText(part("figure"), amount(member.bytes_per_s, "B/s"));
  part("bar").style.width = `${Math.round(100 * (member.bytes_per_s ?? 0) / most)}%`;
  figure("commit", member.last_commit_ms
    ? age(Math.max(0, nowMs - member.last_commit_ms) / 1000) : NONE, kind === "stuck");
  setText(part("held"), String(member.lanes));
  setText(part("moved"), movesOf(member));
  const lags = history?.get(member.id) ?? [];
  const top = lags.reduce((high, lag) => Math.max(high, lag ?? 0), 0);
  showSpark(row.querySelector("svg"), lags, {
    most: mostLag, isBad: kind !== "",
    label: lags.length ? `Lag in ten minutes: now ${amount(member.lag)}, at most ${amount(top)}` : "No lag is known yet",
  });
}

export function showMembers(group, view) {
  const members = group?.members ?? [];
  const table = byId("members");
  if (table.group !== group?.name) { table.group = group?.name; shownMax = SHOWN; }
  const lags = [...(view.history?.values() ?? [])];
  const shared = {
    ...view,
    places: new Map(members.map((member, place) => [member.id, place])),
    most: Math.max(1, ...members.map((member) => member.bytes_per_s ?? 0)),
    mostLag: lags.reduce((top, row) => row.reduce((high, lag) => Math.max(high, lag ?? 0), top), 1),
  };
  const sorted = byLag(members);
  keyed(table, sorted.slice(0, shownMax), (member) => member.id, () => make(view.onMark),
    (row, member) => update(row, member, shared));
  byId("members-table").hidden = members.length === 0;
  byId("no-members").hidden = members.length > 0;
  const more = byId("more-members");
  more.hidden = members.length <= shownMax;
  setText(more, `Show ${count(members.length - shownMax, "more member")}`);
  more.onclick = () => { shownMax += SHOWN * 4; showMembers(group, view); };
}
