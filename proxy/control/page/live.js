// The live page of a node: what it serves, drawn from its feed and its control API.
//
// `layout`: topics with the borders of their lanes; `state`: figures, loads, owners, lags; `events`:
// what happened. GET /groups adds the groups that the feed does not have, GET /history the lines of
// ten minutes. A lane index is lane * partitions + partition, as everywhere in keylane.

import { openDrain, openRebalance, openReset, openSwitches, planRebalance } from "./actions.js";
import { Problem, ask, part } from "./api.js";
import { icon, showBanners, showCluster, showHeader } from "./cluster.js";
import { openFeed } from "./feed.js";
import { addEvents, showLine } from "./line.js";
import { showMembers } from "./members.js";
import { BEHIND_S, EVEN, answersOf, compactOf, listed, summaryOf } from "./model.js";
import { showShare } from "./shares.js";
import { Side } from "./side.js";
import { redraw, showTopics, topicsInView } from "./topics.js";
import { byId, clock, count, element, keyed, setText, sum } from "./text.js";

const READERS = 20, LISTS_MS = 10_000, PLAN_MS = 30_000;
const DRAW = "keylane draw", DRAWS_KEPT = 500;  // else the browser keeps each for as long as the tab lives

const view = {
  link: { isOpen: false, isLost: false, sinceMs: null },
  layouts: new Map(), state: null, listed: new Map(), events: [],
  asked: null,  // the selected group where the feed does not have it: others are not kept up to date
  histories: new Map(), flows: new Map(), plans: new Map(), problem: new Map(), answered: new Map(),
  caller: { may_write: false, reason: "The rights of this page are not known yet." },
  selection: { kind: null, name: null }, marked: null, draws: 0, skewMs: 0, behindS: storedBehindS(),
};

function storedBehindS() {
  try {
    return Number(localStorage.getItem("keylane.behind_s")) || BEHIND_S;
  } catch {
    return BEHIND_S;  // a browser that keeps nothing
  }
}

const nowMs = () => Date.now() - view.skewMs;
const side = new Side(() => { if (innerWidth < 900) byId("side").open = false; });

const feedGroup = (name) => view.state?.groups.find((one) => one.name === name)
  ?? (view.asked?.name === name ? view.asked : null);
const feedShare = (name) => view.state?.shares?.find((one) => one.name === name) ?? null;

function summaries() {
  const names = new Set([
    ...view.listed.keys(),
    ...(view.state?.groups ?? []).map((one) => one.name),
    ...(view.state?.shares ?? []).map((one) => one.name),
  ]);
  return [...names].map((name) =>
    summaryOf(name, view.listed.get(name), feedGroup(name), feedShare(name)));
}

function topicRows() {
  return [...view.layouts.values()].map((topic) => ({
    name: topic.name, partitions: topic.partitions, lanes: topic.lanes, stuck: 0, lagS: null,
    bytesPerS: view.loads?.get(topic.name) ? sum(view.loads.get(topic.name)) : null,
    get lag() { return this.bytesPerS; },  // the list's order: busiest first
  }));
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;  // typed by hand, with a lone percent sign
  }
}

// What the URL's fragment names; without one, the group that is worst off. The list of groups may
// come before the feed's first state, which shows how they are: the choice is made again then.
function select(groups) {
  const [, kind, name] = /^#(group|topic)=(.+)$/.exec(location.hash) ?? [];
  if (kind) {
    view.selection = { kind, name: decoded(name) };
    return;
  }
  const known = groups.some((one) => one.name === view.selection.name);
  if (view.selection.kind === "group" && known && view.selection.hadState === !!view.state) return;
  const shown = groups.filter((one) => feedGroup(one.name) ?? feedShare(one.name));
  const [first] = listed(shown.length ? shown : groups, { search: "", sort: "lag_s" });
  view.selection = first
    ? { kind: "group", name: first.name, hadState: !!view.state } : { kind: null, name: null };
}

function showAnswers(answers) {
  keyed(byId("answers"), answers, (one) => one.id, () => {
    const tile = element("li");
    tile.append(element("span", "question"), element("span", "value"), element("span", "detail"));
    return tile;
  }, (tile, one) => {
    tile.className = one.grade;
    tile.dataset.answer = one.id;
    setText(tile.children[0], one.question);
    setText(tile.children[1], `${one.grade === "warn" || one.grade === "bad" ? `${icon(one.grade)} ` : ""}${one.value}`);
    setText(tile.children[2], one.text);
    tile.children[2].title = one.text;  // where it is cut short
  });
}

function stateText(group, detail) {
  if (!group) return "";
  const parts = [
    group.isOld ? `last known, from ${clock(group.asOfMs, nowMs())}` : null,
    group.kind === "share" ? "share group" : group.kind === "plain" ? "plain group" : null,
    group.state,
    detail?.assignor ? `assignor ${detail.assignor}` : null,
    group.memberCount === null ? null : count(group.memberCount, "member"),
    detail?.topics ? count(detail.topics.length, "topic") : null,
    group.node ? `served by the node at ${group.node}` : null,
    group.refusal ? `refused: ${group.refusal}` : null,
  ];
  return parts.filter(Boolean).join(", ");
}

function topicText(name, readers) {
  const known = view.layouts.has(name);
  if (!known && view.state) return "no topic with lanes has this name";
  return `topic, read by ${readers.length ? count(readers.length, "group") : "no group"}`;
}

const emptyText = (group) => {
  if (!group) return "";
  const problem = view.problem.get(`group:${group.name}`);
  if (group.node) return `The node at ${group.node} serves this group. Its page shows the members.`;
  if (problem) return `The group cannot be shown: ${problem}.`;
  if (group.kind === "plain") return "A plain group: its members read whole partitions, and keylane passes them on.";
  return "No member reads lanes here.";
};

function showActions(group, detail) {
  const { may_write: mayWrite, reason } = view.caller;
  const isGroup = view.selection.kind === "group" && group !== null;
  // A node changes its own groups only: for those of another its answer is a redirect.
  byId("group-actions").hidden = !isGroup || group.kind !== "lanes" || group.node !== null;
  const members = detail?.members.length ?? group?.memberCount ?? 0;
  const lost = view.link.isLost ? "keylane"
    : view.state?.cluster?.kafka?.is_reachable === false ? "Kafka" : null;
  const canAct = mayWrite && lost === null && view.state !== null;
  byId("rebalance").disabled = !canAct || !members;
  byId("reset").disabled = !canAct || members > 0;
  byId("switches").disabled = !canAct;
  const why = !mayWrite ? reason
    : lost ? `Nothing can be changed before ${lost} can be reached again.`
    : !view.state ? "Nothing can be changed before keylane has sent how its groups are."
    : members ? `Reset offsets: stop the group first, it has ${count(members, "member")}.` : "";
  setText(byId("why-not"), byId("group-actions").hidden ? "" : why);
}

function showSelected(groups) {
  const { kind, name } = view.selection;
  const isGroup = kind === "group";
  const group = isGroup ? groups.find((one) => one.name === name) ?? null : null;
  const detail = isGroup ? feedGroup(name) : null, share = isGroup ? feedShare(name) : null;
  const now = nowMs();
  setText(byId("selected"), name ?? "No group yet");
  const readers = kind === "topic" ? groups.filter((one) => one.topics.includes(name)
    || feedGroup(one.name)?.topics.some((each) => each.name === name)) : [];
  setText(byId("selected-state"), kind === "topic" ? topicText(name, readers) : stateText(group, detail));
  keyed(byId("readers"), readers.slice(0, READERS), (one) => one.name, (one) => {
    const item = element("li"), link = element("a", "", one.name);
    link.href = `#group=${part(one.name)}`;
    item.append(link);
    return item;
  }, () => {});
  byId("main").classList.toggle("old", Boolean(group?.isOld));
  const members = detail?.members ?? [];
  showAnswers(answersOf({
    summary: kind === "topic" ? null : group, members, share, events: view.events,
    cluster: view.state?.cluster, link: view.link, nowMs: now, behindS: view.behindS, plan: view.plans.get(name),
  }).filter((one) => isGroup || one.id === "well" || !kind));
  byId("members-section").hidden = !isGroup || share !== null;
  showMembers(detail, {
    history: view.histories.get(name), marked: view.marked, behindS: view.behindS,
    // Of last known figures the age of a commit stands still, too.
    nowMs: (view.link.isLost ? view.link.sinceMs : group?.isOld ? group.asOfMs : null) ?? now,
    onMark: (id) => { view.marked = view.marked === id ? null : id; draw(); },
  });
  setText(byId("no-members"), emptyText(group));
  showShare(share);
  showLanes(kind, name, detail ?? readers.map((one) => feedGroup(one.name)).find(Boolean) ?? null);
  showActions(group, detail);
  byId("no-lanes").hidden = view.layouts.size > 0 || !view.state;
}

function showLanes(kind, name, detail) {
  const own = new Map((detail?.topics ?? []).map((topic) => [topic.name, topic]));
  const names = kind === "topic" ? [name] : [...own.values()]
    .sort((one, other) => sum(other.lag) - sum(one.lag)).map((topic) => topic.name);
  const layouts = names.map((each) => view.layouts.get(each)).filter(Boolean);
  byId("lanes-section").hidden = layouts.length === 0;
  const members = detail?.members ?? [];
  showTopics(layouts, {
    own, members, loads: view.loads ?? new Map(), behindS: view.behindS, history: view.flows,
    marked: members.findIndex((member) => member.id === view.marked),
  }, `${kind} ${name}`);
}

let isAsked = false;
function draw() {
  // A tab in the background gets no frames, and its title is all that is seen of it.
  if (document.hidden) showHeader(view.link, view.state?.cluster ?? null, view.state?.node, nowMs());
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => { isAsked = false; drawNow(); });
}

function drawNow() {
  const started = performance.now();
  const groups = summaries(), now = nowMs(), cluster = view.state?.cluster ?? null;
  select(groups);
  const before = view.shownName;
  view.shownName = `${view.selection.kind}=${view.selection.name}`;
  if (before !== view.shownName) {
    view.marked = view.asked = null;
    view.histories.clear();
    view.plans.clear();
    if (view.selection.kind === "topic") side.choose("topics");
    refresh().then(refreshPlan);
  }
  showHeader(view.link, cluster, view.state?.node, now);
  showBanners(view.link, cluster, now);
  side.show({ groups, topics: topicRows(), selection: view.selection, behindS: view.behindS });
  showSelected(groups);
  showLine(view.events, { group: view.selection.kind === "group" ? view.selection.name : null, nowMs: now });
  const { may_write: mayWrite, reason, name } = view.caller;
  showCluster(cluster, { mayWrite: mayWrite && !view.link.isLost, why: reason ?? "", onDrain: openDrain });
  setText(byId("caller"), `${mayWrite ? "may change things" : "read only"}${name ? `, as ${name}` : ""}`);
  byId("caller").title = reason ?? "";
  if ((view.draws += 1) % DRAWS_KEPT === 0) performance.clearMeasures(DRAW);
  performance.measure(DRAW, { start: started });
}

let questions = 0;

// Asks without making noise: what cannot be had now stays as it was, and is asked for again. An
// answer that a later one has overtaken is dropped.
async function attempt(key, asked, take) {
  const question = questions += 1;
  const isLate = () => {
    if (question < (view.answered.get(key) ?? 0)) return true;
    view.answered.set(key, question);
    return false;
  };
  try {
    const found = await asked;
    if (isLate()) return;
    take(found);
    view.problem.delete(key);
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    if (!isLate()) view.problem.set(key, problem.message);
  } finally {
    draw();
  }
}

function takeHistory(name, found) {
  view.histories.set(name, new Map(found.members.map((one) => [one.member_id, one.lag])));
}

async function refresh() {
  const { kind, name } = view.selection;
  if (view.problem.delete("caller")) askCaller();
  if (view.problem.delete("events")) askEvents();
  // First the list: it says which groups another node has, whose members are not here to ask for.
  await attempt("groups", ask("groups"), (found) => {
    view.listed = new Map(found.groups.map((one) => [one.group, one]));
  });
  if (kind === "group" && name) {
    attempt(`history:${name}`, ask(`history?group=${part(name)}`), (found) => takeHistory(name, found));
    const isInFeed = view.state?.groups.some((one) => one.name === name) || feedShare(name);
    const listedOne = view.listed.get(name);
    if (!isInFeed && !listedOne?.node && view.state && (listedOne?.kind ?? "lanes") !== "plain") {
      await attempt(`group:${name}`, ask(`groups/${part(name)}`), (found) => {
        if (found.share || view.selection.name !== name) return;  // an answer that came late
        view.asked = { ...compactOf(found, view.layouts), as_of_ms: nowMs() };
      });
      if (view.asked?.name === name) view.asked.is_old = view.problem.has(`group:${name}`);
    } else if (view.asked?.name === name) {
      view.asked = null;
    }
  }
  for (const topic of topicsInView()) {
    attempt(`flow:${topic}`, ask(`history?topic=${part(topic)}`), (found) => {
      view.flows.set(topic, found.topic?.bytes_per_s ?? []);
    });
  }
}

function refreshPlan() {
  const { kind, name } = view.selection;
  if (kind !== "group" || !view.caller.may_write || view.link.isLost) return;
  const group = summaries().find((one) => one.name === name);
  // A plan is asked for where there may be something to move.
  if (!group || (group.balance ?? 1) < EVEN) { view.plans.delete(name); return; }
  attempt(`plan:${name}`, planRebalance(name), (found) => view.plans.set(name, found));
}

view.link = openFeed({
  layout: (topics) => { view.layouts = new Map(topics.map((topic) => [topic.name, topic])); draw(); },
  state: (state) => {
    if (view.state === null) view.shownName = null;  // before it no group could be asked for
    view.state = state;
    if (state.at_ms) view.skewMs = Date.now() - state.at_ms;
    view.loads = new Map(state.topics.map((topic) => [topic.name, topic.bytes_per_s]));
    draw();
  },
  events: (found) => { view.events = addEvents(view.events, found.events ?? found); draw(); },
}, (link) => {
  // As all times of the page by the server's clock, so that they compare.
  view.link = { ...link, sinceMs: link.sinceMs === null ? null : link.sinceMs - view.skewMs };
  draw();
});

function askCaller() {
  attempt("caller", ask("page/caller"), (found) => { view.caller = found; refreshPlan(); });
}

function askEvents() {
  attempt("events", ask("events?limit=1000"), (found) => { view.events = addEvents(view.events, found.events); });
}

askCaller();
askEvents();
setInterval(() => { if (!document.hidden) refresh(); }, LISTS_MS);
setInterval(() => { if (!document.hidden) refreshPlan(); }, PLAN_MS);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh().then(refreshPlan); });

const labelOf = (id) => feedGroup(view.selection.name)?.members.find((one) => one.id === id)?.label ?? id ?? "no member";
byId("rebalance").addEventListener("click", () => openRebalance(view.selection.name, labelOf));
byId("reset").addEventListener("click", () => openReset(view.selection.name,
  (feedGroup(view.selection.name)?.topics ?? []).map((topic) => topic.name)));
byId("switches").addEventListener("click", openSwitches);
byId("events-all").addEventListener("change", draw);
byId("behind").value = String(view.behindS);
byId("behind").addEventListener("change", (event) => {
  view.behindS = Number(event.target.value);
  try {
    localStorage.setItem("keylane.behind_s", String(view.behindS));
  } catch { /* a browser that keeps nothing: it counts for this visit */ }
  draw();
});
addEventListener("hashchange", draw);
// The address keeps what is selected: the link's own fragment would take its place.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("selected").focus();
});
byId("side").open = innerWidth >= 900;
new ResizeObserver(redraw).observe(byId("topics"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
