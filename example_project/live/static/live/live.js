// The live page: nodes, held locks, and runs by key.

import { clock, counted, duration, firstSentence, follow, id, rows, say, seconds, send, verdict } from "./page.js";

const live = id("live");
const mayBreak = Boolean(id("kill"));

// -- showing ----------------------------------------------------------------------

function show(now) {
  verdict(...judge(now));
  const dots = now.nodes.map((node) => `<i class="${node.votes ? "votes" : ""}"></i>`);
  id("dots").innerHTML = dots.join("");
  rows("nodes", now.nodes, (node) => node.name, nodeCells);
  rows("locks", now.locks, (lock) => lock.key + lock.fence, lockCells, (row, lock) => {
    Object.assign(row.dataset, { key: lock.key, pid: lock.pid, fence: lock.fence });
  });
  rows("runs", now.runs, (run) => run.id, runCells, (row, run) => {
    Object.assign(row.dataset, { key: run.key, state: run.state, pid: run.pid });
  });
  id("no-locks").hidden = now.locks_known && now.locks.length > 0;
  say("no-locks", now.locks_known
    ? "No lock is held."
    : "Too few nodes can tell which locks are held. There may be others.");
  const { leader, standbys } = now.beat;
  say("beat", leader
    ? `Beat: process ${leader} is the leader, with ${counted(standbys.length, "standby")}.`
    : now.beat.known
      ? "Beat: there is no leader at the moment."
      : "Beat: too few nodes can tell which process is the leader.");
  say("overlaps", now.overlaps
    ? `${counted(now.overlaps, "overlap")}: two runs of a key at the same time!`
    : "No overlaps.");
  id("overlaps").classList.toggle("bad", now.overlaps > 0);
}

function judge({ voting, quorum, nodes, can_lock: canLock }) {
  const fact = `${voting} of ${nodes.length} nodes vote`;
  if (!canLock) return ["bad", `No lock can be granted: ${fact}, ${quorum} are needed.`];
  if (voting < nodes.length) {
    return ["warn", `Locks are granted: ${fact}, ${quorum} are enough.`];
  }
  return ["", voting === 1 ? "The node votes." : `All ${voting} nodes vote.`];
}

function nodeCells(node) {
  const cells = [
    { head: node.name },
    { text: node.votes ? "votes" : node.state, kind: `vote ${node.votes ? "votes" : ""}` },
    { text: node.votes || node.locks ? String(node.locks) : "–", number: true },
  ];
  if (mayBreak) {
    const word = node.running ? "Stop" : "Start";
    cells.push({
      button: word,
      label: `${word} node ${node.name}`,
      kind: node.running ? "danger" : "quiet",
      press: () => send(`nodes/${node.index}/${word.toLowerCase()}/`, {}),
    });
  }
  return cells;
}

const lockCells = (lock) => [
  { head: lock.key },
  { text: `process ${lock.pid}`, sub: `fence ${lock.fence}` },
  { text: seconds(lock.age), number: true },
  { text: seconds(lock.ttl_left), number: true },
  { text: lock.renewals === null ? "–" : String(lock.renewals), number: true },
  { text: `${lock.votes}/${lock.nodes}${lock.held ? "" : " ?"}`, number: true },
];

function runCells(run) {
  let why = `process ${run.pid}`;
  if (run.holder) why = `held by ${run.holder} since ${clock(run.holder_since)}`;
  else if (run.note) why = firstSentence(run.note);
  const state = run.state === "retried" ? "republished" : run.state;
  return [
    { text: clock(run.began), number: true },
    { head: run.key },
    { text: state, kind: `state ${run.state}` },
    { text: seconds(duration(run)), number: true },
    { text: run.fence ? String(run.renewals) : "–", number: true },
    { text: why, title: run.note },
    { text: run.fence ?? "–", number: true },
  ];
}

// -- buttons ----------------------------------------------------------------------

id("controls").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { customer } = event.target.elements;
  const fields = { customer: customer.value };
  if (event.submitter?.id === "kill") {
    say("said", await send(event.submitter.getAttribute("formaction"), fields));
    return;
  }
  // Ten runs are ten requests at the same time, like those of ten users.
  const clicks = Array.from({ length: Number(event.submitter?.value ?? 1) });
  const url = event.target.getAttribute("action");
  await Promise.all(clicks.map(() => send(url, { ...fields, times: 1 })));
  const name = customer.selectedOptions[0].textContent;
  say("said", clicks.length > 1
    ? `${clicks.length} calls for ${name} were published at the same time.`
    : `A call for ${name} was published.`);
});

follow(live.dataset.state, show);
