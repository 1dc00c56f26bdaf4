// The timeline: a lane for each key, a bar for each run of a body. Runs of one key that
// overlap are drawn below each other, with a red frame.

const WINDOW = 60; // seconds
const STEP = 10;
const LABEL = 150; // pixels for the names of keys
const BAR = 16;
const LANE = 40;
const AXIS = 22;
const AGO = 62; // pixels for "50 s ago" and the space beside it
const NEAR = 22; // pixels: a mark and the number beside it

export function drawTimeline(place, runs, now) {
  const width = Math.max(240, place.clientWidth);
  const label = width < 640 ? 90 : LABEL;
  const x = (instant) =>
    label + ((instant - (now - WINDOW)) / WINDOW) * (width - label - 6);
  const lanes = byKey(runs.filter((run) => (run.ended ?? now) > now - WINDOW));
  let y = AXIS;
  const parts = [];
  for (const [key, lane] of lanes) {
    const stacked = stack(lane.filter((run) => run.fence), now);
    const height = LANE + Math.max(0, stacked.depth - 1) * (BAR + 3);
    parts.push(`<line class="lane" x1="0" x2="${width}" y1="${y}" y2="${y}"/>`);
    parts.push(`<text x="0" y="${y + 21}">${escape(shorten(key, label))}</text>`);
    for (const [run, depth] of stacked.rows) {
      parts.push(bar(run, x, y + 6 + depth * (BAR + 3), now, label));
    }
    let room = label; // marks stand side by side
    for (const near of together(lane.filter((run) => !run.fence), x, label)) {
      const at = Math.max(room, x(near[0].began));
      parts.push(mark(near, at, y + height - 14, width));
      room = at + (near.length > 1 ? 10 + 7 * String(near.length).length : 10) + 4;
    }
    y += height;
  }
  if (!lanes.length) {
    parts.push(`<text class="axis" x="${label}" y="${y + 26}">No runs yet.</text>`);
    y += LANE;
  }
  place.innerHTML =
    `<svg role="img" aria-label="${escape(inWords(lanes))}" viewBox="0 0 ${width} ${y + 2}" ` +
    `width="${width}" height="${y + 2}">${axis((ago) => x(now - ago), y, width - label)}${parts.join("")}</svg>`;
}

/** Return [key, runs] pairs, sorted by key. */
function byKey(runs) {
  const lanes = new Map();
  for (const run of runs) {
    if (!lanes.has(run.key)) lanes.set(run.key, []);
    lanes.get(run.key).push(run);
  }
  return [...lanes].sort(([one], [other]) => one.localeCompare(other));
}

/** Put runs that overlap below each other. */
function stack(bodies, now) {
  const ends = [];
  const rows = [];
  for (const run of bodies.sort((one, other) => one.began - other.began)) {
    let depth = ends.findIndex((end) => end <= run.began);
    if (depth < 0) depth = ends.length;
    ends[depth] = run.ended ?? now;
    rows.push([run, depth]);
  }
  return { rows, depth: ends.length };
}

function bar(run, x, y, now, label) {
  const from = Math.max(label, x(run.began));
  const to = x(run.ended ?? now);
  const long = Math.max(3, to - from);
  const took = `${((run.ended ?? now) - run.began).toFixed(1)} s`;
  const kind = `bar ${run.state}${run.overlaps ? " clash" : ""}`;
  let text = "";
  if (long > 46) {
    text = `<text class="inside" x="${from + 7}" y="${y + 12}">${took}</text>`;
  }
  let end = "";
  if (run.state === "killed") {
    end = `<path class="mark end" d="M${to - 5} ${y - 2}l10 20m0 -20l-10 20"/>`;
  }
  const title = `${run.key}: ${run.state}, ${took}, process ${run.pid}, fence ${run.fence}`;
  return (
    `<g><title>${escape(title)}</title>` +
    `<rect class="${kind}" x="${from}" y="${y}" width="${long}" height="${BAR}" rx="4"/>` +
    `${text}${end}</g>`
  );
}

/** Group the marks of refused calls that would be drawn over each other. */
function together(refused, x, label) {
  const groups = [];
  const latest = {}; // by state
  for (const run of refused.sort((one, other) => one.began - other.began)) {
    const near = latest[run.state];
    if (x(run.began) < label) continue;
    if (near && x(run.began) - x(near[0].began) < NEAR) near.push(run);
    else groups.push((latest[run.state] = [run]));
  }
  return groups;
}

function mark(near, at, y, width) {
  const [run] = near;
  const path = run.state === "skipped" ? `M${at} ${y}v8` : `M${at - 4} ${y + 8}h8l-4 -7z`;
  const why = run.holder ? `held by ${run.holder}` : run.note;
  const state = run.state === "retried" ? "republished" : run.state;
  const title = `${run.key}: ${near.length} ${state}, ${why}`;
  // The number stands behind its mark, or before it at the right edge.
  const fits = at + 6 + 7 * String(near.length).length < width;
  const where = fits ? `x="${at + 6}"` : `text-anchor="end" x="${at - 6}"`;
  const count = near.length > 1
    ? `<text class="axis" ${where} y="${y + 9}">${near.length}</text>`
    : "";
  return (
    `<g><title>${escape(title)}</title>` +
    `<path class="mark ${run.state}" d="${path}"/>${count}</g>`
  );
}

function axis(x, bottom, width) {
  const lines = [];
  const every = STEP * Math.ceil(((WINDOW / STEP) * AGO) / width); // labels side by side
  for (let ago = WINDOW - STEP; ago >= 0; ago -= STEP) {
    const at = x(ago);
    const anchor = ago ? "middle" : "end";
    const words = ago ? `${ago} s ago` : "now";
    lines.push(`<line class="grid" x1="${at}" x2="${at}" y1="${AXIS - 6}" y2="${bottom}"/>`);
    if (ago % every) continue;
    lines.push(`<text class="axis" text-anchor="${anchor}" x="${at}" y="11">${words}</text>`);
  }
  return lines.join("");
}

function inWords(lanes) {
  const said = lanes.map(([key, lane]) => {
    const count = (state) => lane.filter((run) => run.state === state).length;
    const states = ["running", "done", "killed", "lost", "failed", "skipped", "retried"];
    const counts = states
      .filter(count)
      .map((state) => `${count(state)} ${state === "retried" ? "republished" : state}`);
    const clash = lane.some((run) => run.overlaps) ? ", overlapping" : "";
    return `${key}: ${counts.join(", ")}${clash}`;
  });
  return `Runs of the last minute. ${said.join(". ")}.`;
}

const shorten = (key, label) => {
  const room = Math.floor(label / 7.4);
  return key.length > room ? `${key.slice(0, room - 1)}…` : key;
};

const escape = (text) =>
  String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
