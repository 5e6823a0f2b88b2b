// Keeps the page up to date: fetches it again every two seconds and takes over what has changed, so that what has the focus,
// is selected or opened stays so. Nothing is fetched while nobody sees the page.
"use strict";

const PERIOD_MS = 2000;
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

// Behind one address there may be several processes, each with a page of its own: one is stayed with while it answers.
const OTHERS_MAX = 5;
let otherCount = 0;

function isOther(fresh) {
  const [shown, other] = [document, fresh].map((page) => page.getElementById("source").dataset.process);
  otherCount = shown === other ? 0 : (otherCount + 1) % OTHERS_MAX;
  return otherCount > 0;
}

async function refresh() {
  try {
    const response = await fetch(location.href, { signal: AbortSignal.timeout(10000), cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    if (response.redirected) return location.reload(); // to a page where one logs in
    if (!fresh.getElementById("connection")) throw new Error("not a page of ours");
    const focused = document.activeElement;
    if (!isOther(fresh)) takeOver(fresh);
    if (focused.isConnected) focused.focus({ preventScroll: true }); // its row may have moved
    say("");
  } catch {
    say("No reply from the server: this page is out of date.");
  }
}

async function keepFresh() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
    if (document.visibilityState === "visible") await refresh();
  }
}

document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && refresh());
keepFresh();
