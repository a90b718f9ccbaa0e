// What the feed's figures mean: grades, orders and sentences. Nothing here touches the document.

import { NONE, age, amount, clock, count, duration, lagText } from "./text.js";

export const BEHIND_CHOICES_S = [10, 60, 600, 3600];
export const BEHIND_S = 60;
export const EVEN = 1.25;  // busiest member beside the mean: up to here a group is even,
const UNEVEN = 1.5;        // and from here on the page says that it is not.
export const HELD_UP_S = 60;   // a record of a share group that is held for longer is named
const MOVES = new Set(["move", "rebalance", "join", "leave"]);
const WORST = { bad: 3, warn: 2, unknown: 1, good: 0 };

export const worseOf = (one, other) => (WORST[other] > WORST[one] ? other : one);

const since = (ms, nowMs) => (ms ? ` since ${clock(ms, nowMs)}` : "");

// What the server says is wrong, errors first.
export function problemsOf(cluster, nowMs) {
  const rank = (one) => (one.severity === "error" ? 0 : 1);
  return [...(cluster?.problems ?? [])].sort((one, other) => rank(one) - rank(other))
    .map((one) => ({ ...one, when: since(one.since_ms, nowMs) }));
}

// The worst of connection, Kafka, brokers, nodes and journal: what the header says.
export function health(link, cluster, nowMs) {
  if (link.isLost) {
    return { grade: "bad", word: "No connection", text: `no connection to keylane${since(link.sinceMs, nowMs)}` };
  }
  if (!link.isOpen) return { grade: "unknown", word: "Connecting", text: "connecting to keylane" };
  if (!cluster) return { grade: "unknown", word: "Not known", text: "the state of the cluster is not known" };
  const problems = problemsOf(cluster, nowMs);
  const brokers = cluster.brokers ?? [], nodes = cluster.nodes ?? [];
  const parts = [count(brokers.length, "broker"), count(Math.max(1, nodes.length), "node")];
  if (!problems.length) {
    return { grade: "good", word: "Well", text: `${parts.join(" and ")} in reach, journal served` };
  }
  const grade = problems.some((one) => one.severity === "error") ? "bad" : "warn";
  const more = problems.length > 1 ? ` And ${count(problems.length - 1, "more problem")}.` : "";
  return { grade, word: wordOf(problems[0].code), text: `${problems[0].text}${more}` };
}

const WORDS = {
  "kafka-away": "Kafka is away", "broker-away": "Broker away", "node-away": "Node away",
  "not-serving": "Not serving", "journal-unserved": "Journal away", "topics-disputed": "Topics disputed",
  "records-set-aside": "Damaged records", "task-failed": "Task failed",
};
const wordOf = (code) => WORDS[code] ?? "Problem";

// One group for the list: the figures of GET /groups, and over them those of the last state.
export function summaryOf(name, listed, detail, share) {
  const members = detail?.members ?? [];
  const most = (values) => values.reduce((top, value) => (value > (top ?? -1) ? value : top), null);
  const lags = members.map((one) => one.lag).filter((lag) => lag !== null && lag !== undefined);
  return {
    name,
    kind: listed?.kind ?? (share ? "share" : "lanes"),
    state: detail?.state ?? share?.state ?? listed?.state ?? "",
    protocol: listed?.protocol ?? "",
    memberCount: detail ? members.length : share?.members ?? listed?.member_count ?? null,
    laneCount: listed?.lane_count ?? null,
    topics: listed?.topics ?? [],
    lag: detail?.lag ?? share?.lag ?? listed?.lag ?? (lags.length ? lags.reduce((a, b) => a + b) : null),
    lagIsExact: detail?.lag_is_exact ?? listed?.lag_is_exact ?? null,
    lagS: detail?.lag_s ?? listed?.lag_s ?? most(members.map((one) => one.lag_s)),
    lastCommitMs: detail?.last_commit_ms ?? listed?.last_commit_ms ?? most(members.map((one) => one.last_commit_ms)),
    bytesPerS: detail?.bytes_per_s ?? listed?.bytes_per_s ?? null,
    recordsPerS: detail?.records_per_s ?? listed?.records_per_s ?? null,
    consumedPerS: detail?.consumed_per_s ?? listed?.consumed_per_s ?? null,
    stuck: detail ? members.filter((one) => one.is_stuck).length
      : share ? share.partitions.filter(isHeld).length : listed?.stuck_members ?? 0,
    balance: balanceOf(detail?.balance) ?? balanceOf(listed?.balance),
    node: listed?.node ?? null,
    refusal: detail?.refusal ?? listed?.refusal ?? null,
    isOld: Boolean(detail?.is_old ?? share?.is_old ?? listed?.is_old),
    asOfMs: detail?.as_of_ms ?? share?.as_of_ms ?? listed?.as_of_ms ?? null,
  };
}

// A partition of a share group that hands nothing out, or a record of which is held for long.
const isHeld = ({ window }) => window !== null
  && (Boolean(window.error) || !window.is_settled || window.oldest_s > HELD_UP_S);

const balanceOf = (balance) => (typeof balance === "number" ? balance : balance?.busiest ?? null);

export const isFar = (lagS, behindS) => lagS !== null && lagS !== undefined && lagS >= behindS;

const last = (value) => (value === null || value === undefined ? -1 : value);
const byName = (one, other) => (one.name < other.name ? -1 : 1);
const ORDERS = {
  lag_s: (one, other) => other.stuck - one.stuck || last(other.lagS) - last(one.lagS)
    || last(other.lag) - last(one.lag) || byName(one, other),
  lag: (one, other) => last(other.lag) - last(one.lag) || byName(one, other),
  name: byName,
};

export function listed(items, { search, sort }) {
  const wanted = search.trim().toLowerCase();
  return items.filter((one) => one.name.toLowerCase().includes(wanted))
    .sort(ORDERS[sort] ?? ORDERS.lag_s);
}

// Members by lag; those that are stuck first.
export const byLag = (members) => [...members].sort((one, other) =>
  Number(other.is_stuck ?? false) - Number(one.is_stuck ?? false)
  || last(other.lag) - last(one.lag) || (one.label < other.label ? -1 : 1));

// A group as GET /groups/{group} has it, in the compact form of the feed.
export function compactOf(report, layouts) {
  const place = new Map(report.members.map((member, number) => [member.member_id, number]));
  const topics = new Map();
  for (const lane of report.lanes) {
    const layout = layouts.get(lane.topic);
    if (!layout) continue;
    if (!topics.has(lane.topic)) {
      const size = layout.partitions * layout.lanes;
      topics.set(lane.topic, {
        name: lane.topic, owner: Array(size).fill(-1), lag: Array(size).fill(null),
        lag_is_exact: Array(size).fill(0), lag_s: Array(size).fill(null),
      });
    }
    const topic = topics.get(lane.topic), index = lane.lane_index;
    topic.owner[index] = place.get(lane.member_id) ?? -1;
    topic.lag[index] = lane.lag;
    topic.lag_is_exact[index] = Number(lane.lag_is_exact);
    topic.lag_s[index] = lane.lag_s ?? null;
  }
  return {
    ...report,
    name: report.group,
    members: report.members.map((member) => ({
      ...member,
      id: member.member_id,
      label: member.instance_id ?? (member.client_id || member.member_id),
      lanes: member.lane_count,
      gained: member.lanes_gained?.length ?? null,
      lost: member.lanes_lost?.length ?? null,
    })),
    topics: [...topics.values()],
  };
}

// The five answers, one tile each: {id, question, grade, value, text}.
export function answersOf({ summary, members, share, events, cluster, link, nowMs, behindS, plan }) {
  const asOfMs = link.isLost ? link.sinceMs : summary?.isOld ? summary.asOfMs : null;
  const old = (one) => (asOfMs === null ? one : { ...one, grade: "old", text: `at ${clock(asOfMs, nowMs)}: ${one.text}` });
  return [
    old(whoIsBehind(summary, members, behindS)),
    old(share ? whatIsHeld(share) : whatIsStuck(summary, members, asOfMs ?? nowMs)),
    whatMoved(summary, events, nowMs),
    old(whatIsUneven(summary, members, plan)),
    isItWell(link, cluster, nowMs),
  ];
}

const ago = (seconds) => (seconds < 1 ? "just now" : `${age(seconds)} ago`);

const answer = (id, question, grade, value, text) => ({ id, question, grade, value, text });

function whoIsBehind(group, members, behindS) {
  const question = "Which member is behind?";
  if (!group || (group.lag === null && group.lagS === null)) {
    return answer("behind", question, "unknown", "Not known", "no lag was measured yet");
  }
  if (!group.lag) return answer("behind", question, "good", "No member", "every record is done");
  if (group.lagS === null) {
    return answer("behind", question, "plain", `${lagText(group.lag, group.lagIsExact)} records`, "not known for how many seconds");
  }
  const [worst] = byLag(members);
  const records = `${lagText(group.lag, group.lagIsExact)} records`;
  const far = isFar(group.lagS, behindS);
  const behind = `${duration(group.lagS)} behind`;
  const share = worst && worst.lag && group.lag ? Math.round(100 * worst.lag / group.lag) : null;
  if (!far || !worst) {
    const whose = worst && share !== null ? `, ${share} % at ${worst.label}` : "";
    const all = worst ? "No member" : "The group";
    return answer("behind", question, far ? "bad" : worst ? "good" : "plain",
      far ? behind : all, `${far ? "" : `${behind}, `}${records}${whose}`);
  }
  return answer("behind", question, "bad", worst.label,
    `${behind}; ${lagText(worst.lag, worst.lag_is_exact)} of ${records}`);
}

function whatIsStuck(group, members, nowMs) {
  const question = "What is stuck?";
  const stuck = byLag(members.filter((one) => one.is_stuck));
  if (!stuck.length && group?.stuck) {
    return answer("stuck", question, "bad", count(group.stuck, "member"), "without a commit, with lag");
  }
  if (!stuck.length) {
    if (group?.memberCount === 0 && group.lag) {
      return answer("stuck", question, "warn", "No member reads", `${lagText(group.lag, group.lagIsExact)} records wait`);
    }
    const commit = group?.lastCommitMs ? `last commit ${ago((nowMs - group.lastCommitMs) / 1000)}` : "";
    return answer("stuck", question, group ? "good" : "unknown", group ? "Nothing" : "Not known", commit);
  }
  const more = stuck.length > 1 ? ` and ${stuck.length - 1} more` : "";
  return answer("stuck", question, "bad", `${stuck[0].label}${more}`,
    `no progress for ${duration(stuck[0].stuck_s)}; ${lagText(stuck[0].lag, stuck[0].lag_is_exact)} records wait`);
}

function whatIsHeld(share) {
  const question = "What is stuck?";
  const windows = share.partitions.filter((one) => one.window !== null);
  const stopped = windows.find((one) => one.window.error || !one.window.is_settled);
  const oldest = windows.reduce((top, one) =>
    ((one.window.oldest_s ?? -1) > (top?.window.oldest_s ?? -1) ? one : top), null);
  if (stopped) {
    return answer("stuck", question, "bad", `${stopped.topic} ${stopped.partition}`,
      stopped.window.error ?? "not settled: nothing is handed out");
  }
  if (oldest && oldest.window.oldest_s > HELD_UP_S) {
    return answer("stuck", question, "bad", `${oldest.topic} ${oldest.partition}`,
      `a record is held for ${duration(oldest.window.oldest_s)}`);
  }
  return answer("stuck", question, "good", "No key", "no record is held for long");
}

function whatMoved(group, events, nowMs) {
  const question = "What moved?";
  const own = events.filter((one) => MOVES.has(one.kind) && (!group || one.group === group.name));
  const found = own[own.length - 1];
  if (!found) return answer("moved", question, "plain", "Nothing", "no lane has moved since this node started");
  return answer("moved", question, "plain", ago((nowMs - found.at_ms) / 1000), found.text);
}

function whatIsUneven(group, members, plan) {
  const question = "What is out of balance?";
  const balance = group?.balance ?? null;
  if (balance === null || !group.memberCount) {
    const text = group?.kind === "share" ? "a share group deals out records, not lanes"
      : group?.memberCount === 0 ? "the group has no members" : "no load was measured yet";
    return answer("balance", question, "unknown", NONE, text);
  }
  const busiest = members.reduce((top, one) =>
    ((one.bytes_per_s ?? 0) > (top?.bytes_per_s ?? -1) ? one : top), null);
  const figure = `${balance.toFixed(1)} × mean`;
  const holder = busiest ? `${busiest.label} has ${amount(busiest.bytes_per_s, "B/s")}` : "";
  if (balance < EVEN) return answer("balance", question, "good", "Even", `busiest member: ${figure}`);
  return answer("balance", question, balance >= UNEVEN ? "warn" : "good", figure, `${holder}${planText(plan)}`);
}

export function planText(plan) {
  if (!plan) return "";
  if (!plan.moves.length) return "; a rebalance would move nothing";
  return `; a rebalance would move ${count(plan.moves.length, "lane")}, to ${plan.balance_after.toFixed(1)} × mean`;
}

function isItWell(link, cluster, nowMs) {
  const { grade, word, text } = health(link, cluster, nowMs);
  return answer("well", "Is the cluster well?", grade, word, text);
}
