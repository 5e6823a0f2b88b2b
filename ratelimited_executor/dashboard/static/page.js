// Keeps the page up to date: fetches it again every two seconds and takes over what has changed, so that what has the focus,
// is selected or opened stays so. Nothing is fetched while nobody sees the page.
"use strict";

const PERIOD_MS = 2000;
const LATE_MS = 3500; // without an answer, after which the page says so, and waits on
const LOST_MS = 10000;
const KEPT = new Set(["open", "tabindex"]); // attributes that are the reader's

const alike = (old, fresh) => old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && old.id === fresh.id;

function update(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value && !KEPT.has(name)) old.setAttribute(name, value);
  }
  const byId = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let place = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    const match = node.id ? byId.get(node.id) : place;
    if (!match || !alike(match, node)) {
      old.insertBefore(node, place);
      continue;
    }
    byId.delete(node.id); // of two with one id, which should not be, the second is another
    if (match === place) place = place.nextSibling;
    else old.insertBefore(match, place);
    update(match, node);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

// Takes over a whole fresh page: its process and time, and its contents.
function takeOver(fresh) {
  document.title = fresh.title;
  for (const part of ["header nav", "#source", "main"]) update(document.querySelector(part), fresh.querySelector(part));
}

const say = (text) => {
  const status = document.getElementById("connection");
  if (status.textContent !== text) status.textContent = text;
  document.body.classList.toggle("stale", text !== "");
};

const sayLate = () => say("No reply from the server: this page is out of date.");

// Behind one address there may be several processes, each with a page of its own: one is stayed with while it answers.
const OTHERS_MAX = 5;
let otherCount = 0;

function isOther(fresh) {
  const [shown, other] = [document, fresh].map((page) => page.getElementById("source").dataset.process);
  otherCount = shown === other ? 0 : (otherCount + 1) % OTHERS_MAX;
  return otherCount > 0;
}

async function refresh() {
  const late = setTimeout(sayLate, LATE_MS);
  try {
    const response = await fetch(location.href, { signal: AbortSignal.timeout(LOST_MS), cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    if (response.redirected) return location.reload(); // to a page where one logs in
    if (!fresh.getElementById("connection")) throw new Error("not a page of ours");
    const focused = document.activeElement;
    if (!isOther(fresh)) takeOver(fresh);
    if (focused.isConnected) focused.focus({ preventScroll: true }); // its row may have moved
    say("");
  } catch {
    sayLate();
  } finally {
    clearTimeout(late);
  }
}

// What is pointed at in a plot: its values at that moment, read off the lines as they are drawn.
function pointAt(event) {
  const svg = event.target.closest?.("svg[data-frame]");
  for (const id of ["value", "mark"]) document.getElementById(id)?.remove();
  if (!svg) return;
  const [left, right, top, bottom] = svg.dataset.frame.split(" ").map(Number);
  const box = svg.getBoundingClientRect();
  const scale = box.width / svg.viewBox.baseVal.width;
  const x = Math.min(right, Math.max(left, (event.clientX - box.left) / scale));
  const seconds = (svg.dataset.span * (right - x)) / (right - left);
  const lines = [...svg.querySelectorAll("path.line")].map((path) => {
    const y = nearest(path.getAttribute("d"), x);
    return y === null ? null : `${path.classList[1]} ${valueText((svg.dataset.top * (bottom - y)) / (bottom - top), svg.dataset.unit)}`;
  });
  const told = [seconds < 2.5 ? "now" : `${spanText(seconds)} ago`, ...lines.filter((line) => line !== null)];
  const place = (id, text, style) => {
    const part = document.body.appendChild(document.createElement("div"));
    part.id = id;
    part.textContent = text;
    part.setAttribute("aria-hidden", "true"); // the plot has a label with its values
    for (const [name, pixels] of Object.entries(style)) part.style[name] = `${pixels}px`;
    return part;
  };
  place("mark", "", { left: box.left + x * scale, top: box.top + top * scale, height: (bottom - top) * scale });
  const value = place("value", told.join("\n"), { top: box.top + top * scale });
  const besides = box.left + x * scale + 10;
  value.style.left = `${besides + value.offsetWidth > innerWidth ? besides - value.offsetWidth - 20 : besides}px`;
}

function nearest(path, x) {
  let best = null;
  let distance = 12; // units of the plot, beyond which there is a gap
  for (const [, px, py] of path.matchAll(/(-?[\d.]+) (-?[\d.]+)/g)) {
    if (Math.abs(px - x) >= distance) continue;
    distance = Math.abs(px - x);
    best = Number(py);
  }
  return best;
}

const spanText = (seconds) => (seconds < 60 ? `${Math.round(seconds)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`);

function valueText(value, unit) {
  if (unit !== "s") return `${value < 1000 ? Number(value.toPrecision(3)) : Math.round(value).toLocaleString("en")}${unit}`;
  return value >= 120 ? spanText(value) : value >= 1 ? `${value.toPrecision(3)} s` : `${Number((1000 * value).toPrecision(3))} ms`;
}

document.addEventListener("pointermove", pointAt);
document.addEventListener("pointerdown", pointAt);
document.addEventListener("scroll", pointAt, { passive: true });

async function keepFresh() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
    if (document.visibilityState === "visible") await refresh();
  }
}

document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && refresh());
keepFresh();
