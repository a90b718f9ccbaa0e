// What a caller with the admin's role may do. Each action shows first what it would do (a dry run
// of the same request), and runs only after that was seen and confirmed.

import { ask, part } from "./api.js";
import { amount, byId, cell, count, element, setText } from "./text.js";

const ROWS = 100;

// One dialog serves all actions: what comes late for one must not show, or be confirmed, in the next.
let opened = 0, turn = 0;

function table(columns, rows) {
  const made = element("table");
  const head = made.createTHead().insertRow();
  for (const [name, kind] of columns) {
    const th = element("th", kind, name);
    th.scope = "col";
    head.append(th);
  }
  const body = made.createTBody();
  for (const row of rows.slice(0, ROWS)) {
    const tr = body.insertRow();
    row.forEach((value, place) => cell(tr, value, columns[place][1]));
  }
  const box = element("div", "scroll");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "What it would do");
  box.append(made);
  return rows.length > ROWS
    ? [box, element("p", "quiet", `and ${rows.length - ROWS} more`)] : [box];
}

const paragraph = (text, kind = "") => element("p", kind, text);

// A field of the dialog: a select where there are choices, else a line of text.
function fieldOf({ name, label, choices, type = "text", value = "", hint }) {
  const box = element("label", "field");
  box.append(element("span", "", label));
  const input = element(choices ? "select" : "input");
  input.name = name;
  if (choices) input.append(...choices.map(([key, text]) => new Option(text, key)));
  else { input.type = type; input.autocomplete = "off"; }
  if (value) input.value = value;
  box.append(input);
  if (hint) box.append(element("span", "quiet", hint));
  return box;
}

// `plan(values)` gives {lines, request, canRun}: what is shown, and what Confirm sends.
export function openAction({ title, about, fields = [], onFields, plan, confirm, done }) {
  const dialog = byId("action");
  const [head, body, error, preview, run] = ["title", "about", "error", "preview", "run"]
    .map((name) => byId(`action-${name}`));
  const form = byId("action-fields");
  const own = opened += 1;
  let current = null;
  turn += 1;
  setText(head, title);
  body.replaceChildren(...[about].flat().map((text) => paragraph(text)));
  form.replaceChildren(...fields.map(fieldOf));
  byId("action-again").hidden = fields.length === 0;
  setText(run, confirm);
  const values = () => Object.fromEntries(new FormData(form));
  const fail = (problem) => {
    setText(error, problem.message);
    error.hidden = false;
  };
  const clear = () => {
    current = null;
    run.disabled = true;
    error.hidden = true;
    preview.replaceChildren();
  };
  const show = async () => {
    clear();
    const mine = turn += 1;
    preview.replaceChildren(paragraph("Asking what it would do.", "quiet"));
    try {
      const found = await plan(values());
      if (mine !== turn) return;
      preview.replaceChildren(...found.lines);
      current = found;
      run.disabled = !found.canRun;
    } catch (problem) {
      if (mine !== turn) return;
      preview.replaceChildren();
      fail(problem);
    }
  };
  form.oninput = () => { turn += 1; clear(); onFields?.(form); };
  form.onsubmit = (event) => { event.preventDefault(); show(); };
  byId("action-cancel").onclick = () => dialog.close();
  setText(byId("action-cancel"), "Cancel");
  run.hidden = false;
  run.onclick = async () => {
    const { request } = current;
    run.disabled = true;
    try {
      const answer = await ask(request.path, request);
      if (own !== opened) return;
      preview.replaceChildren(paragraph(done(answer), "done"));
      run.hidden = true;
      setText(byId("action-cancel"), "Close");
      byId("action-cancel").focus();
    } catch (problem) {
      if (own === opened) fail(problem);
    }
  };
  onFields?.(form);
  clear();
  dialog.showModal();
  if (fields.length === 0) show();
}

const dryRun = (path) => `${path}?dry_run=true`;

export async function planRebalance(group) {
  return ask(dryRun(`groups/${part(group)}/rebalance`), { method: "POST" });
}

export function openRebalance(group, label) {
  const path = `groups/${part(group)}/rebalance`;
  openAction({
    title: `Rebalance ${group}`,
    about: "The lanes of the group are dealt out again by their load. A lane that moves is given up "
      + "by its member first, so the order of each key stays.",
    confirm: "Rebalance now",
    done: (answer) => answer.reason ?? "The rebalance is asked for. Moves appear under Events.",
    plan: async () => {
      const found = await planRebalance(group);
      const moves = found.moves.map((one) => [one.topic, String(one.lane_index), label(one.from_member),
        label(one.to_member), amount(one.bytes_per_s, "B/s")]);
      const figure = (value) => (value === null || value === undefined ? "not known" : `${value.toFixed(2)} × mean`);
      return {
        lines: [
          paragraph(`${count(moves.length, "lane")} would move. The busiest member has `
            + `${figure(found.balance)} now, and ${figure(found.balance_after)} after it.`),
          ...(found.reason ? [paragraph(found.reason, "warn")] : []),
          ...(moves.length ? table([["Topic"], ["Lane", "number"], ["From"], ["To"], ["Load", "number"]], moves) : []),
        ],
        request: { path, method: "POST" },
        canRun: moves.length > 0 || !found.reason,
      };
    },
  });
}

const TARGETS = [
  ["earliest", "the start of the log"], ["latest", "the end of the log"],
  ["datetime", "a time"], ["duration", "a time before now"], ["offset", "an offset"],
  ["shift-by", "so many offsets on or back"], ["current", "the present offsets"],
];
const HINTS = {
  datetime: "for example 2026-11-28T14:00:00Z", duration: "for example PT1H for one hour ago",
  offset: "an offset, the same for each partition",
  "shift-by": "-1000: a thousand offsets are read again",
};

const wholeNumber = (text) => {
  if (!/^[+-]?\d+$/.test(text.trim())) throw new Error(`${text || "the value"} is no whole number`);
  return Number(text);
};

function resetBody({ to, value, topic, partitions }) {
  const needs = to in HINTS;
  if (needs && !value.trim()) throw new Error("a value is needed");
  const chosen = (partitions ?? "").split(/[\s,]+/).filter(Boolean).map(wholeNumber);
  const given = !needs ? null : to === "offset" || to === "shift-by" ? wholeNumber(value) : value.trim();
  return {
    topics: topic ? [{ topic, partitions: chosen.length ? chosen : null }] : null, to, value: given,
  };
}

export function openReset(group, topics) {
  const path = `groups/${part(group)}/reset-offsets`;
  openAction({
    title: `Reset the offsets of ${group}`,
    about: "Sets where the group goes on to read: the offset of each partition, and of all its lanes. "
      + "The group must have no members meanwhile.",
    confirm: "Reset offsets",
    done: (answer) => `Offsets of ${count(answer.partitions.length, "partition")} are reset.`,
    fields: [
      { name: "to", label: "To", choices: TARGETS },
      { name: "value", label: "Value", hint: "" },
      { name: "topic", label: "Topic", choices: [["", "all topics of the group"], ...topics.map((name) => [name, name])] },
      { name: "partitions", label: "Partitions", hint: "empty: all; for example 0, 3" },
    ],
    onFields: (form) => {
      const value = form.elements.value.closest("label"), to = form.elements.to.value;
      value.hidden = !(to in HINTS);
      setText(value.lastElementChild, HINTS[to] ?? "");
      form.elements.partitions.closest("label").hidden = !form.elements.topic.value;
    },
    plan: async (values) => {
      const body = resetBody(values);
      const found = await ask(dryRun(path), { method: "POST", body });
      const rows = found.partitions.map((one) => [one.topic, String(one.partition), amount(one.lanes),
        String(one.from_offset ?? "none"), String(one.to_offset), amount(one.offsets_again), amount(one.offsets_skipped)]);
      const total = (name) => found.partitions.reduce((all, one) => all + (one[name] ?? 0), 0);
      return {
        lines: [
          paragraph(`${amount(total("offsets_again"))} offsets would be read again, and `
            + `${amount(total("offsets_skipped"))} never read.`, total("offsets_skipped") ? "warn" : ""),
          ...table([["Topic"], ["Partition", "number"], ["Lanes", "number"], ["From", "number"], ["To", "number"],
            ["Again", "number"], ["Skipped", "number"]], rows),
        ],
        request: { path, method: "POST", body },
        canRun: rows.length > 0,
      };
    },
  });
}

export function openDrain(node) {
  const path = `nodes/${node.number}/drain`;
  const isDrained = node.state === "draining" || node.state === "drained";
  const method = isDrained ? "DELETE" : "POST";
  openAction({
    title: isDrained ? `Take node ${node.number} back` : `Drain node ${node.number}`,
    about: isDrained
      ? "The node takes groups and partitions again."
      : "The node hands its groups and partitions to the other nodes and takes no new ones. "
        + "Clients connect to the others. After that it can be stopped without a pause for a member.",
    confirm: isDrained ? "Take it back" : "Drain the node",
    done: (answer) => `Node ${answer.node} is ${answer.state}.`,
    plan: async () => {
      const found = await ask(dryRun(path), { method });
      const groups = found.groups ?? [];
      return {
        lines: [paragraph(`${isDrained ? "It has now" : "It would hand over"} ${count(found.partitions ?? 0, "partition")} and `
          + `${count(groups.length, "group")}${groups.length ? `: ${groups.slice(0, 20).join(", ")}` : ""}. `
          + `It has ${count(found.connections ?? 0, "connection")}.`)],
        request: { path, method },
        canRun: true,
      };
    },
  });
}

const SWITCHES = {
  "accept.individual.commit": ["commits of lanes and key ranges, everywhere", "they are refused; commits of plain topics pass"],
  "accept.range.fetch": ["fetches of lanes and key ranges of one topic", "they are refused; plain fetches pass"],
  "allow.individual.commit": ["whether one client shares partitions", "it takes whole partitions only"],
};
const SET = { true: "on", false: "off", null: "as configured" };

export function openSwitches() {
  openAction({
    title: "Change a switch",
    about: Object.entries(SWITCHES).map(([name, [what, off]]) => `${name}: ${what}. Off: ${off}.`),
    confirm: "Change the switch",
    done: () => "The switch is set. It counts from the next request on.",
    fields: [
      { name: "name", label: "Switch", choices: Object.keys(SWITCHES).map((name) => [name, name]) },
      { name: "of", label: "Topic" },
      { name: "value", label: "Set to", choices: [["false", "off"], ["true", "on"], ["null", "as configured"]] },
    ],
    onFields: (form) => {
      const of = form.elements.of.closest("label"), name = form.elements.name.value;
      of.hidden = name === "accept.individual.commit";
      setText(of.firstElementChild, name === "accept.range.fetch" ? "Topic" : "Client id");
    },
    plan: async ({ name, of, value }) => {
      const now = await ask("switches");
      const wanted = { true: true, false: false, null: null }[value];
      const isGlobal = name === "accept.individual.commit";
      if (!isGlobal && !of.trim()) throw new Error("a topic or a client id is needed");
      const before = isGlobal ? now[name] : now[name][of.trim()] ?? null;
      const folder = name === "accept.range.fetch" ? "topics" : "clients";
      const all = Object.fromEntries(Object.keys(SWITCHES).map((each) => [each, now[each]]));
      return {
        lines: [paragraph(`${name}${isGlobal ? "" : ` of ${of.trim()}`}: ${SET[before]} → ${SET[wanted]}.`),
          ...(wanted === false ? [paragraph(`Off: ${SWITCHES[name][1]}.`, "warn")] : [])],
        request: isGlobal
          ? { path: "switches", method: "PUT", body: { ...all, [name]: wanted }, version: now.version }
          : { path: `switches/${folder}/${part(of.trim())}`, method: "PUT", body: { [name]: wanted }, version: now.version },
        canRun: before !== wanted,
      };
    },
  });
}
