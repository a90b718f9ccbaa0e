// The lists of all groups and all topics, with search and order; links, so that each can be shared.

import { VirtualList } from "./lists.js";
import { isFar, listed } from "./model.js";
import { amount, byId, count, duration, element, lagText, setAttribute, setText } from "./text.js";

const ROW = 46;
const link = { group: (name) => `#group=${encodeURIComponent(name)}`, topic: (name) => `#topic=${encodeURIComponent(name)}` };

function makeRow() {
  const row = element("li");
  const anchor = element("a");
  anchor.append(element("span", "name"), element("span", "value"), element("span", "note quiet"),
    element("span", "second quiet"));
  row.append(anchor);
  return row;
}

function fill(row, { href, isCurrent, name, value, note, second, kind }) {
  const anchor = row.firstElementChild;
  if (anchor.getAttribute("href") !== href) anchor.setAttribute("href", href);
  setAttribute(anchor, "aria-current", isCurrent ? "true" : null);
  row.className = kind;
  setText(anchor.children[0], name);
  anchor.children[0].title = name;
  setText(anchor.children[1], value);
  setText(anchor.children[2], note);
  setText(anchor.children[3], second);
}

function groupNote(one) {
  if (one.stuck) return `✕ ${count(one.stuck, one.kind === "share" ? "partition" : "member")} stuck`;
  const kind = { share: "share group, ", plain: "plain, " }[one.kind] ?? "";
  const members = one.memberCount === null ? one.state : count(one.memberCount, "member");
  const where = one.node ? `, at ${one.node}` : "";
  return `${one.isOld ? "last known: " : ""}${kind}${members || "not known"}${where}`;
}

export class Side {
  constructor(onChange) {
    this.shown = "groups";
    this.view = { groups: [], topics: [], selection: {}, behindS: 60 };
    this.lists = {
      groups: new VirtualList(byId("groups-box"), {
        rowHeight: ROW, keyOf: (one) => one.name, make: makeRow, update: (row, one) => this.fillGroup(row, one),
      }),
      topics: new VirtualList(byId("topics-box"), {
        rowHeight: ROW, keyOf: (one) => one.name, make: makeRow, update: (row, one) => this.fillTopic(row, one),
      }),
    };
    for (const name of ["groups", "topics"]) {
      byId(`${name}-tab`).addEventListener("click", () => this.choose(name));
    }
    byId("search").addEventListener("input", () => this.draw());
    byId("search").addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown") return;
      event.preventDefault();
      this.lists[this.shown].focus(0);
    });
    byId("sort").addEventListener("change", () => this.draw());
    byId("groups-box").addEventListener("click", () => onChange());
    byId("topics-box").addEventListener("click", () => onChange());
  }

  choose(name) {
    this.shown = name;
    for (const each of ["groups", "topics"]) {
      setAttribute(byId(`${each}-tab`), "aria-pressed", String(each === name));
      byId(`${each}-box`).hidden = each !== name;
    }
    setText(byId("search-label"), name === "groups" ? "Find a group" : "Find a topic");
    byId("sort").closest("label").hidden = name !== "groups";
    this.draw();
  }

  show(view) {
    this.view = view;
    setText(byId("groups-count"), String(view.groups.length));
    setText(byId("topics-count"), String(view.topics.length));
    this.draw();
  }

  draw() {
    const search = byId("search").value, sort = this.shown === "groups" ? byId("sort").value : "lag";
    const found = listed(this.view[this.shown], { search, sort });
    this.lists[this.shown].show(found);
    const all = this.view[this.shown].length;
    setText(byId("found"), search ? `${found.length} of ${all}`
      : all ? "" : `No ${this.shown === "groups" ? "group" : "topic with lanes"} yet.`);
  }

  fillGroup(row, one) {
    const { selection, behindS } = this.view;
    const isBad = one.stuck > 0 || (Boolean(one.lag) && isFar(one.lagS, behindS));
    fill(row, {
      href: link.group(one.name), name: one.name, note: groupNote(one),
      isCurrent: selection.kind === "group" && selection.name === one.name,
      value: lagText(one.lag, one.lagIsExact), second: one.lag && one.lagS !== null ? duration(one.lagS) : "",
      kind: `${isBad ? "bad" : ""} ${one.isOld ? "old" : ""}`.trim(),
    });
  }

  fillTopic(row, one) {
    const { selection } = this.view;
    fill(row, {
      href: link.topic(one.name), name: one.name,
      isCurrent: selection.kind === "topic" && selection.name === one.name,
      value: amount(one.bytesPerS, "B/s"), second: "",
      note: `${count(one.partitions, "partition")} × ${count(one.lanes, "lane")}`, kind: "",
    });
  }
}
