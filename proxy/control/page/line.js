// The event line: what happened, with times, the newest first.

import { byId, clock, element, keyed, setText } from "./text.js";

const KEPT = 1000, SHOWN = 60;
const ICONS = {
  rebalance: "⇄", move: "→", join: "+", leave: "−", node: "▣", broker: "▤", journal: "≡",
  action: "✎", refused: "⊘", error: "!",
};

// Events by id: the feed may send again what the page has asked for.
export function addEvents(known, added) {
  if (!added.length) return known;
  const byNumber = new Map([...known, ...added].map((one) => [one.id, one]));
  return [...byNumber.values()].sort((one, other) => one.id - other.id).slice(-KEPT);
}

export function showLine(events, { group, nowMs }) {
  const isAll = byId("events-all").checked || !group;
  const shown = events.filter((one) => isAll || one.group === group || !one.group).slice(-SHOWN).reverse();
  keyed(byId("events"), shown, (one) => one.id, () => {
    const item = element("li");
    const mark = element("span", "icon");
    mark.setAttribute("aria-hidden", "true");
    item.append(element("time"), mark, element("span", "text"));
    return item;
  }, (item, one) => {
    const [time, mark, text] = item.children;
    item.className = one.severity === "error" ? "bad" : one.severity === "warning" ? "warn" : "";
    time.dateTime = new Date(one.at_ms).toISOString();
    setText(time, clock(one.at_ms, nowMs));
    setText(mark, { error: "✕", warning: "▲" }[one.severity] ?? ICONS[one.kind] ?? "•");
    const kind = item.className ? `${one.severity}: ` : "";
    setText(text, `${kind}${isAll && one.group && !one.text.includes(one.group) ? `${one.group}: ` : ""}${one.text}`);
  });
  byId("no-events").hidden = shown.length > 0;
}
