// The page of the limits: permits in use, starts of the last minute, and runs by tenant.

import { clock, counted, duration, follow, id, rows, say, seconds, send, verdict } from "../live/page.js";

const limits = id("limits");
const slider = id("limit");
const each = Number(limits.dataset.each);
const rate = Number(limits.dataset.rate);
let inUse = null; // permits of all tenants; null if that cannot be told

function show(now) {
  inUse = now.known ? now.in_all : null;
  verdict(...judge(now));
  showLimit();
  meter("starts", now.starts, rate, rate);
  say("starts-words", startWords(now));
  rows("tenants", now.tenants, (tenant) => tenant.name, (tenant) => [
    { head: tenant.name },
    { text: squares(tenant.used, each), kind: `squares${tenant.used === null ? " unknown" : ""}` },
    { text: tenant.used === null ? "unknown" : `${tenant.used} of ${each}`, number: true },
  ], (row, tenant) => { row.dataset.used = tenant.used ?? "unknown"; });
  rows("runs", now.runs, (run) => run.id, runCells, (row, run) => {
    Object.assign(row.dataset, { key: run.key, state: run.state });
  });
  say("at-once", atOnce(now));
  id("at-once").classList.toggle("bad", now.too_many + now.too_often > 0);
}

function judge({ known, in_all: used, starts }) {
  if (!known) {
    return ["bad", "Too few nodes answer: how many permits are in use is unknown."];
  }
  const permits = used === 1 ? "1 permit is in use" : `${used} permits are in use`;
  return ["", `${permits}, and ${starts} of ${rate} starts.`];
}

function startWords({ starts, next_start: wait }) {
  if (starts === null) return "unknown";
  const words = `${starts} of ${rate} in the last minute`;
  return starts < rate ? words : `${words}; the next one in ${seconds(wait)}`;
}

function atOnce({ most_at_once: most, too_many: many, too_often: often }) {
  if (many) return `${counted(many, "run")} began when as many ran as may!`;
  if (often) return `${counted(often, "run")} began too soon for ${rate} a minute!`;
  return `At most ${most} ran at once.`;
}

/** Show the permits of all tenants beside the limit that the slider has. */
function showLimit() {
  const limit = Number(slider.value);
  id("limit-value").textContent = slider.value;
  meter("in-all", inUse, Number(slider.max), limit);
  say("in-all-words", inUse === null
    ? "unknown"
    : inUse > limit
      ? `${inUse} of ${limit}: jobs that were published before keep their limit`
      : `${inUse} of ${limit}`);
}

/** Fill one square for each permit in use; those beyond the limit have no frame. */
function meter(name, used, most, limit) {
  const place = id(name);
  while (place.children.length < most) place.append(document.createElement("i"));
  [...place.children].forEach((square, index) => {
    const kind = index < (used ?? 0) ? "used" : used === null ? "unknown" : "free";
    square.className = `${kind}${index < limit ? "" : " beyond"}`;
  });
  Object.assign(place.dataset, { used: used ?? "unknown", limit });
}

const squares = (used, most) =>
  used === null ? "?".repeat(most) : "■".repeat(used) + "□".repeat(Math.max(0, most - used));

const runCells = (run) => [
  { text: clock(run.began), number: true },
  { head: run.key },
  { text: run.state, kind: `state ${run.state}` },
  { text: seconds(duration(run)), number: true },
  { text: run.permits.join(" and ") },
  { text: run.fence, number: true },
];

slider.addEventListener("input", showLimit);
id("controls").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { tenant, limit } = event.target.elements;
  const jobs = event.submitter?.value ?? 1;
  const fields = { tenant: tenant.value, limit: limit.value, jobs };
  say("said", await send(event.target.getAttribute("action"), fields));
});

showLimit();
follow(limits.dataset.state, show);
