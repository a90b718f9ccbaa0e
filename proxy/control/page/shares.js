// Share groups in the order of keys: is a key held up, is a window filling, what comes again?
//
// A window is drawn from its oldest record to the highest offset, as a part of the look-ahead. When
// it is full, one key holds up all others of its partition.

import { HELD_UP_S } from "./model.js";
import { amount, byId, cell, count, duration, element, sum } from "./text.js";

const FULL = 0.8, FILLING = 0.5;  // parts of the look-ahead; the alert fires at the first
const STATES = [
  ["flight", "at members", (w) => w.in_flight],
  ["ready", "ready", (w) => w.ready],
  ["waiting", "behind their key", (w) => w.waiting],
  ["back", "on their way back", (w) => w.released + w.unconfirmed],
];

const cards = new Map();

const windowsOf = (group) => group.partitions.filter((one) => one.window !== null);

const place = (one) => `${one.topic} ${one.partition}`;

const named = (one) => `partition ${one.partition} of ${one.topic}`;

const used = (one) => one.window.span / one.window.look_ahead;

const part = (value) => (value < 0.005 ? "below 1 %" : `${Math.round(100 * value)} %`);

const grade = (value) => (value > FULL ? "bad" : value > FILLING ? "warn" : "good");

// The two questions of the person on call, answered in a sentence each; the worst partition speaks.
function findings(group) {
  const windows = windowsOf(group);
  const found = [];
  for (const one of windows) {
    const { error, is_settled: isSettled } = one.window;
    if (error) found.push(["bad", `Members of ${named(one)} get the error ${error}.`]);
    else if (!isSettled) {
      found.push(["warn", `Nothing of ${named(one)} is handed out: earlier records may be missing.`]);
    }
  }
  const oldest = windows.reduce((most, one) =>
    ((one.window.oldest_s ?? -1) > (most?.window.oldest_s ?? -1) ? one : most), null);
  if (oldest === null) {
    found.push(["quiet", windows.length ? "No record is held." : "No window is open at this node."]);
  } else if (oldest.window.oldest_s > HELD_UP_S) {
    found.push(["bad", `A record is held for ${duration(oldest.window.oldest_s)}: `
      + `${named(oldest)}, offset ${oldest.window.oldest_offset}.${behind(oldest)}`]);
  } else {
    found.push(["good", `No key is held up: the oldest record is here for `
      + `${duration(oldest.window.oldest_s)}.`]);
  }
  const fullest = windows.reduce((most, one) => (most === null || used(one) > used(most) ? one : most),
    null);
  if (fullest !== null && used(fullest) > FILLING) {
    const end = used(fullest) > FULL ? "; one key soon holds up all others there." : ".";
    found.push([grade(used(fullest)),
      `The window of ${named(fullest)} is ${part(used(fullest))} full${end}`]);
  }
  return found;
}

// The records that wait behind the oldest one, if its key is among the hottest.
function behind(one) {
  const key = one.window.hottest_keys.find((each) => each.oldest_offset === one.window.oldest_offset);
  return key ? ` ${count(key.records - 1, "record")} of its key ${key.records === 2 ? "waits" : "wait"}`
    + " behind it." : "";
}

function bar(one) {
  const { window } = one;
  const held = sum(STATES.map(([, , of]) => of(window)));
  const box = element("div", "window");
  const filled = element("div", `filled ${grade(used(one))}`);
  filled.style.width = `${Math.min(100, 100 * used(one))}%`;
  for (const [kind, , of] of STATES) {
    if (!of(window)) continue;
    const segment = element("span", kind);
    segment.style.flexGrow = String(of(window));
    filled.append(segment);
  }
  if (window.span > held) {
    const rest = element("span", "done");
    rest.style.flexGrow = String(window.span - held);
    filled.append(rest);
  }
  box.append(filled);
  const both = element("div");
  both.append(box, element("div", "quiet", [
    `${window.span} of ${window.look_ahead}`,
    ...STATES.filter(([, , of]) => of(window)).map(([, name, of]) => `${of(window)} ${name}`),
  ].join(" · ")));
  if (window.error) both.append(element("div", "bad", window.error));
  else if (!window.is_settled) both.append(element("div", "warn", "not settled"));
  return both;
}

function again(window) {
  if (!window.redelivered) return "none";
  return `${amount(window.redelivered)} (${part(window.redelivered / window.handed_out)})`;
}

// On a phone a row is a block, and each figure has its label beside it.
function figure(row, label, text, kind) {
  cell(row, text, kind).dataset.label = label;
}

function showPartitions(body, group) {
  body.replaceChildren();
  for (const one of group.partitions) {
    const row = body.insertRow();
    cell(row, place(one));
    if (one.window === null) {
      const where = one.node ? `at another node: ${one.node}` : "closed: no member asks for records";
      cell(row, where, "quiet");
      cell(row, "–", "absent");
      figure(row, "Lag", amount(one.lag));
      for (let rest = 0; rest < 3; rest += 1) cell(row, "–", "absent");
      continue;
    }
    const { window } = one;
    cell(row, bar(one));
    figure(row, "Oldest", duration(window.oldest_s), window.oldest_s > HELD_UP_S ? "bad" : "");
    figure(row, "Lag", amount(one.lag));
    figure(row, "Members", String(window.members));
    figure(row, "Redelivered", again(window));
    figure(row, "Last attempt", String(window.last_attempts), window.last_attempts ? "bad" : "");
  }
}

function showKeys(root, group) {
  const found = windowsOf(group)
    .flatMap((one) => one.window.hottest_keys.map((key) => [one, key]));
  found.sort(([, one], [, other]) => other.records - one.records || other.held_s - one.held_s);
  const body = root.querySelector(".keys tbody");
  body.replaceChildren();
  for (const [one, key] of found.slice(0, 10)) {
    const row = body.insertRow();
    cell(row, key.hash);
    cell(row, place(one));
    cell(row, amount(key.records - 1));
    cell(row, String(key.oldest_offset));
    cell(row, duration(key.held_s), key.held_s > HELD_UP_S ? "bad" : "");
  }
  root.querySelector(".keys").hidden = found.length === 0;
}

function show(root, group) {
  const windows = windowsOf(group).map((one) => one.window);
  const out = sum(windows.map((window) => window.handed_out));
  const came = sum(windows.map((window) => window.redelivered));
  root.querySelector(".share-figures").textContent = [
    group.state, count(group.members, "member"), `lag ${amount(group.lag)}`,
    `${amount(sum(windows.map((window) => window.in_flight)))} at members`,
    `${amount(out)} handed out, ${came ? part(came / out) : "none"} of them redelivered`,
    ...(group.partitions_left_out ? [`${group.partitions_left_out} more partitions`] : []),
  ].join(", ");
  root.querySelector(".findings").replaceChildren(
    ...findings(group).slice(0, 4).map(([kind, text]) => element("li", kind, text)));
  showPartitions(root.querySelector(".partitions tbody"), group);
  showKeys(root, group);
}

function cardOf(name) {
  let root = cards.get(name);
  if (!root) {
    root = byId("share-template").content.cloneNode(true).firstElementChild;
    root.querySelector(".partitions").setAttribute("aria-label", `Partitions of ${name}`);
    root.querySelector(".keys .scroll").setAttribute("aria-label", `Hottest keys of ${name}`);
    cards.set(name, root);
  }
  return root;
}

// The card of the share group that is selected; null: none is.
export function showShare(group) {
  const section = byId("shares-section");
  section.hidden = group === null;
  if (group === null) return;
  const box = byId("shares");
  const root = cardOf(group.name);
  show(root, group);
  // Only when another one is selected: an open list of keys and its focus stay as they are.
  if (box.firstElementChild !== root) box.replaceChildren(root);
}
