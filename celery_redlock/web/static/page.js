// Refreshes a page in place: it fetches the page again, and changes only what differs.
// Elements stay the same, so that the keyboard focus and a selection stay, too.

const every = 1000 * Number(document.querySelector("main").dataset.every);
const patience = 15 * every; // a server that hangs must not look like one that answers
const stale = document.getElementById("stale");
const pause = document.getElementById("pause");
let isPaused = false;
let seenAt = new Date();

async function refresh() {
  try {
    const signal = AbortSignal.timeout(patience);
    const answer = await fetch(location.href, { cache: "no-store", signal });
    const text = await answer.text();
    const next = new DOMParser().parseFromString(text, "text/html");
    const parts = [...document.querySelectorAll("[data-live]")];
    if (!parts.some((part) => next.getElementById(part.id))) {
      const why = next.querySelector(".errornote, .note:not([hidden])")?.textContent;
      throw new Error(why || `it answers ${answer.status}`);
    }
    for (const part of parts) {
      const other = next.getElementById(part.id);
      if (other) match(part, other);
    }
    seenAt = new Date();
    warn("");
  } catch (error) {
    const since = seenAt.toLocaleTimeString([], { hour12: false });
    warn(`This is what was seen at ${since}. The page does not answer now: ${error.message}.`);
  }
}

function warn(text) {
  stale.hidden = !text;
  if (stale.textContent !== text) stale.textContent = text;
}

/** Make an element equal to another one. */
function match(here, there) {
  for (const { name } of [...here.attributes]) {
    if (!there.hasAttribute(name)) here.removeAttribute(name);
  }
  for (const { name, value } of there.attributes) {
    if (here.getAttribute(name) !== value) here.setAttribute(name, value);
  }
  const known = new Map();
  for (const one of here.children) if (one.dataset.id) known.set(one.dataset.id, one);
  const wanted = [...there.childNodes];
  wanted.forEach((node, place) => {
    const own = known.get(node.dataset?.id);
    const present = here.childNodes[place];
    if (own && own !== present) here.insertBefore(own, present ?? null);
    const now = here.childNodes[place];
    if (!now || now.nodeName !== node.nodeName || (now.dataset?.id ?? "") !== (node.dataset?.id ?? "")) {
      here.insertBefore(document.importNode(node, true), now ?? null);
    } else if (now.nodeType === Node.ELEMENT_NODE) {
      match(now, node);
    } else if (now.nodeValue !== node.nodeValue) {
      now.nodeValue = node.nodeValue;
    }
  });
  while (here.childNodes.length > wanted.length) here.lastChild.remove();
}

pause.hidden = false;
pause.addEventListener("click", () => {
  isPaused = !isPaused;
  pause.textContent = isPaused ? "Go on" : "Pause";
  pause.setAttribute("aria-pressed", String(isPaused));
});

for (;;) {
  await new Promise((next) => setTimeout(next, every));
  if (!isPaused && !document.hidden) await refresh();
}
