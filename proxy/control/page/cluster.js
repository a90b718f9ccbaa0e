// The header's state, the banners, and the parts of the cluster: nodes, brokers, journal.

import { health, problemsOf } from "./model.js";
import { amount, byId, clock, count, element, keyed, setText } from "./text.js";

const ICONS = { good: "✓", warn: "▲", bad: "✕", unknown: "?" };
export const icon = (grade) => ICONS[grade] ?? "";

export function showHeader(link, cluster, node, nowMs) {
  const { grade, word, text } = health(link, cluster, nowMs);
  const shown = byId("link");
  shown.className = grade;
  // A group may be in trouble under it: the word is about the cluster alone.
  setText(shown, `${icon(grade)} ${grade === "good" ? "Cluster well" : word}`);
  shown.title = text;
  document.title = grade === "good" ? "keylane" : `${icon(grade)} ${word}: keylane`;
  document.documentElement.classList.toggle("lost", link.isLost);
  if (!node) return;
  const own = cluster?.node ?? {};
  const facts = [
    ["version", node.version],
    ...(own.number === null || own.number === undefined ? [] : [["node", String(own.number)]]),
    ["in", amount(node.upstream_bytes_per_s, "B/s")],
    ["out", amount(node.lane_bytes_per_s, "B/s")],
    ["records", amount(node.records_per_s, "/s")],
    ["connections", amount(node.sessions)],
    ["cache", `${amount(node.cache_bytes, "B")} of ${amount(node.cache_bytes_max, "B")}`],
  ];
  keyed(byId("node"), facts, ([name]) => name, () => {
    const pair = element("div");
    pair.append(element("dt"), element("dd"));
    return pair;
  }, (pair, [name, value]) => {
    setText(pair.firstElementChild, name);
    setText(pair.lastElementChild, value);
  });
}

export function showBanners(link, cluster, nowMs) {
  const problems = problemsOf(cluster, nowMs);
  if (link.isLost) {
    problems.unshift({
      code: "link", severity: "error", when: ` since ${clock(link.sinceMs, nowMs)}`,
      text: "No connection to keylane", remedy: "The figures below are the last ones. The page connects again by itself.",
    });
  }
  keyed(byId("banners"), problems, (one) => `${one.code} ${one.severity} ${one.text}`, () => {
    const item = element("li");
    item.append(element("span", "icon"), element("strong"), element("span", "when"), element("span", "remedy"));
    item.firstElementChild.setAttribute("aria-hidden", "true");
    return item;
  }, (item, one) => {
    const [mark, text, when, remedy] = item.children;
    item.className = one.severity === "error" ? "bad" : "warn";
    setText(mark, icon(item.className));
    setText(text, one.text);
    setText(when, one.when.trim());
    setText(remedy, one.remedy ?? "");
  });
}

const STATES = { serving: "good", draining: "warn", drained: "warn", away: "bad" };

function showNodes(cluster, { mayWrite, why, onDrain }) {
  const nodes = cluster?.nodes ?? [];
  keyed(byId("nodes"), nodes, (one) => one.number, () => {
    const row = element("tr");
    row.append(element("th"), element("td"), element("td"));
    row.children[1].append(element("span"), element("span", "quiet"));
    row.firstElementChild.scope = "row";
    const button = element("button", "small");
    button.type = "button";
    button.addEventListener("click", () => onDrain(row.node));
    row.lastElementChild.append(button);
    return row;
  }, (row, one) => {
    const [name, both, action] = row.children, [state, serves] = both.children;
    row.node = one;
    const grade = STATES[one.state] ?? "unknown";
    setText(name, one.number === null ? "this one" : `${one.number}${one.is_self ? " (this)" : ""}`);
    name.title = one.address ?? "";
    state.className = grade;
    setText(state, `${icon(grade)} ${one.state}`);
    setText(serves, [count(one.partitions ?? 0, "partition"),
      ...(one.groups === null || one.groups === undefined ? [] : [count(one.groups, "group")])].join(", "));
    const button = action.firstElementChild;
    const isDrained = one.state === "draining" || one.state === "drained";
    setText(button, isDrained ? "Take back" : "Drain");
    button.setAttribute("aria-label", `${button.textContent} node ${one.number}`);
    button.hidden = one.number === null;  // the only node: there is no other to hand over to
    // A drained node whose others have gone since must be able to serve again.
    const isOnly = nodes.length < 2 && !isDrained;
    button.disabled = !mayWrite || isOnly;
    button.title = mayWrite ? (isOnly ? "It is the only node." : "") : why;
  });
  byId("nodes-table").hidden = nodes.length === 0;
  setText(byId("no-nodes"), nodes.length ? "" : "One node without a number.");
}

export function showCluster(cluster, access) {
  showNodes(cluster, access);
  keyed(byId("brokers"), cluster?.brokers ?? [], (one) => one.id, () => {
    const row = element("tr");
    row.append(element("th"), element("td"), element("td", "state"));
    row.firstElementChild.scope = "row";
    return row;
  }, (row, one) => {
    const [name, address, state] = row.children;
    const grade = one.is_reachable === false ? "bad" : one.is_reachable ? "good" : "unknown";
    setText(name, String(one.id));
    setText(address, one.address);
    address.title = one.rack ? `rack ${one.rack}` : "";
    state.className = `state ${grade}`;
    state.title = one.reason ?? "";
    setText(state, one.is_reachable === false
      ? `${icon(grade)} away since ${clock(one.unreachable_since_ms)}` : `${icon(grade)} ${one.is_reachable ? "in reach" : "not asked yet"}`);
  });
  const journal = cluster?.journal;
  setText(byId("journal"), journal ? journalText(journal) : "Journal: not known.");
}

function journalText(journal) {
  const parts = [
    journal.unserved_partitions ? `${count(journal.unserved_partitions, "partition")} not served` : "served",
    ...(journal.records_set_aside ? [`${count(journal.records_set_aside, "record")} set aside`] : []),
    ...(journal.disputed_topics ? [`${count(journal.disputed_topics, "disputed topic")}`] : []),
    ...(journal.resting_tasks ? [`${count(journal.resting_tasks, "task")} waiting for a restart`] : []),
  ];
  return `Journal: ${parts.join(", ")}.`;
}
