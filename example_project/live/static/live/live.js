// The live page fetches the state about once a second and changes only what differs. Rows
// stay the same elements, so the keyboard focus stays in its place.

import { drawTimeline } from "./timeline.js";

const EVERY = 700; // milliseconds
const id = (name) => document.getElementById(name);
const live = id("live");
const mayBreak = Boolean(id("kill"));
let last = null;
let lead = 0; // seconds by which the server's clock is ahead of this one

// -- asking -----------------------------------------------------------------------

async function fetchState() {
  try {
    const answer = await fetch(live.dataset.state, { cache: "no-store" });
    if (!answer.ok) throw new Error(`the site answers ${answer.status}`);
    last = await answer.json();
    lead = last.now - Date.now() / 1000;
    show(last);
  } catch (error) {
    verdict("bad", `The site does not answer (${error.message}).`);
  }
  setTimeout(fetchState, document.hidden ? 4 * EVERY : EVERY);
}

async function send(url, fields) {
  const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
  const answer = await fetch(url, {
    method: "POST",
    headers: { Accept: "application/json", "X-CSRFToken": token },
    body: new URLSearchParams(fields),
  });
  return answer.ok ? (await answer.json()).done : `The request failed: ${answer.status}`;
}

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
  id("no-locks").hidden = now.locks.length > 0;
  const { leader, standbys } = now.beat;
  say("beat", leader
    ? `Beat: process ${leader} is the leader, with ${counted(standbys.length, "standby")}.`
    : "Beat: there is no leader at the moment.");
  say("overlaps", now.overlaps
    ? `${counted(now.overlaps, "overlap")}: two runs of a key at the same time!`
    : "No overlaps.");
  id("overlaps").classList.toggle("bad", now.overlaps > 0);
  draw();
}

function judge({ voting, quorum, nodes, can_lock: canLock }) {
  const fact = `${voting} of ${nodes.length} nodes vote`;
  if (!canLock) return ["bad", `No lock can be granted: ${fact}, ${quorum} are needed.`];
  if (voting < nodes.length) {
    return ["warn", `Locks are granted: ${fact}, ${quorum} are enough.`];
  }
  return ["", `All ${voting} nodes vote.`];
}

function verdict(mood, text) {
  id("verdict").className = `verdict ${mood}`;
  say("verdict-text", text);
}

function say(name, text) { // a text that stays the same is not read out again
  if (id(name).textContent !== text) id(name).textContent = text;
}

const firstSentence = (text) => text.split(/\. (?=[A-Z])/)[0];
const seconds = (value) => (value === null ? "–" : `${value.toFixed(1)} s`);
const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
const clock = (instant) => new Date(instant * 1000).toLocaleTimeString([], { hour12: false });

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
  { text: `${lock.votes}/${lock.nodes}`, number: true },
];

function runCells(run) {
  const took = run.fence ? (run.ended ?? Date.now() / 1000 + lead) - run.began : null;
  let why = `process ${run.pid}`;
  if (run.holder) why = `held by ${run.holder} since ${clock(run.holder_since)}`;
  else if (run.note) why = firstSentence(run.note);
  const state = run.state === "retried" ? "republished" : run.state;
  return [
    { text: clock(run.began), number: true },
    { head: run.key },
    { text: state, kind: `state ${run.state}` },
    { text: seconds(took), number: true },
    { text: run.fence ? String(run.renewals) : "–", number: true },
    { text: why, title: run.note },
    { text: run.fence ?? "–", number: true },
  ];
}

// -- tables -----------------------------------------------------------------------

/** Show one row for each of `items`, in their order; keep the rows that exist. */
function rows(name, items, keyOf, cellsOf, mark = () => {}) {
  const body = id(name).tBodies[0];
  const known = new Map([...body.rows].map((row) => [row.dataset.id, row]));
  const isFirst = !body.dataset.filled;
  items.forEach((item, index) => {
    const key = String(keyOf(item));
    let row = known.get(key);
    if (!row) {
      row = document.createElement("tr");
      row.dataset.id = key;
      if (!isFirst) row.className = "new";
    }
    known.delete(key);
    mark(row, item);
    cellsOf(item).forEach((cell, place) => fill(row, place, cell));
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
  });
  known.forEach((row) => row.remove());
  body.dataset.filled = "yes";
}

function fill(row, place, { head, text, title, sub, kind, number, button, label, press }) {
  let cell = row.cells[place];
  if (!cell) {
    cell = document.createElement(head === undefined ? "td" : "th");
    if (head !== undefined) cell.scope = "row";
    if (number) cell.className = "number";
    if (button) cell.className = "actions";
    cell.append(document.createElement(button ? "button" : "span"));
    if (sub) cell.append(Object.assign(document.createElement("span"), { className: "sub" }));
    row.append(cell);
  }
  const inner = cell.firstChild;
  const wanted = button ?? head ?? text;
  if (inner.textContent !== wanted) inner.textContent = wanted;
  if (sub) cell.lastChild.textContent = sub;
  if (title && cell.title !== title) cell.title = title;
  const name = button ? `small ${kind}` : (kind ?? "");
  if (inner.className !== name) inner.className = name;
  if (!button) return;
  inner.type = "button";
  inner.setAttribute("aria-label", label);
  inner.onclick = async () => say("said", await press());
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

function draw() {
  if (id("timeline").matches(":hover")) return; // the user reads the title of a bar
  if (last) drawTimeline(id("timeline"), last.recent, Date.now() / 1000 + lead);
}

const calm = matchMedia("(prefers-reduced-motion: reduce)");
setInterval(() => { if (!document.hidden && !calm.matches) draw(); }, 200);
addEventListener("resize", draw);
fetchState();
