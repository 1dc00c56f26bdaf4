// What the pages with a script share: they fetch their state about once a second, and
// change only what differs. Rows stay the same elements, so the keyboard focus stays in its
// place.

import { drawTimeline } from "./timeline.js";

const EVERY = 700; // milliseconds
const calm = matchMedia("(prefers-reduced-motion: reduce)");
let last = null;
let lead = 0; // seconds by which the server's clock is ahead of this one

export const id = (name) => document.getElementById(name);
export const serverTime = () => Date.now() / 1000 + lead;

// -- asking -----------------------------------------------------------------------

/** Fetch the state again and again, show it, and draw the timeline of its runs. */
export async function follow(url, show) {
  setInterval(() => { if (!document.hidden && !calm.matches) draw(); }, 200);
  addEventListener("resize", draw);
  for (;;) {
    try {
      const answer = await fetch(url, { cache: "no-store" });
      if (!answer.ok) throw new Error(`the site answers ${answer.status}`);
      last = await answer.json();
      lead = last.now - Date.now() / 1000;
      show(last);
      draw();
    } catch (error) {
      verdict("bad", `The site does not answer (${error.message}).`);
    }
    await new Promise((next) => setTimeout(next, document.hidden ? 4 * EVERY : EVERY));
  }
}

function draw() {
  if (id("timeline").matches(":hover")) return; // the user reads the title of a bar
  if (last) drawTimeline(id("timeline"), last.recent, serverTime());
}

export async function send(url, fields) {
  const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
  const answer = await fetch(url, {
    method: "POST",
    headers: { Accept: "application/json", "X-CSRFToken": token },
    body: new URLSearchParams(fields),
  });
  return answer.ok ? (await answer.json()).done : `The request failed: ${answer.status}`;
}

// -- showing ----------------------------------------------------------------------

export function verdict(mood, text) {
  id("verdict").className = `verdict ${mood}`;
  say("verdict-text", text);
}

export function say(name, text) { // a text that stays the same is not read out again
  if (id(name).textContent !== text) id(name).textContent = text;
}

export const firstSentence = (text) => text.split(/\. (?=[A-Z])/)[0];
export const seconds = (value) => (value === null ? "–" : `${value.toFixed(1)} s`);
export const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
export const clock = (instant) => new Date(instant * 1000).toLocaleTimeString([], { hour12: false });

/** Return the seconds that a run took, or has taken until now; null if it did not run. */
export const duration = (run) => run.fence ? (run.ended ?? serverTime()) - run.began : null;

/** Show one row for each of `items`, in their order; keep the rows that exist. */
export function rows(name, items, keyOf, cellsOf, mark = () => {}) {
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
