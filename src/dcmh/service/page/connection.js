// When the service does not answer: shows it, retries until it does, then repeats what failed.

import { isHealthy } from "./api.js";
import { byId } from "./element.js";

const FIRST_MS = 500;
const MAX_MS = 4000;
const banner = byId("connection");
let waiting = []; // what to do once the service is back
let timer = null;
let pause = 0;

/** `error` is an api.Unavailable; `again` is called once the service answers. */
export function lost(error, again) {
  waiting.push(again);
  banner.textContent = error.message;
  banner.classList.remove("back");
  if (timer === null) later(1000 * error.seconds);
}

/** Drop what was to be repeated: another search has started. */
export function forget() {
  waiting = [];
}

function later(least = 0) {
  pause = Math.min(MAX_MS, pause ? 1.6 * pause : FIRST_MS);
  timer = setTimeout(look, Math.max(pause, least));
}

async function look() {
  if (!(await isHealthy())) {
    later();
    return;
  }
  const todo = waiting;
  waiting = [];
  timer = null;
  pause = 0;
  banner.textContent = "Connected again";
  banner.classList.add("back");
  setTimeout(() => {
    if (timer === null) banner.textContent = "";
  }, 2500);
  for (const image of document.querySelectorAll("img.broken")) {
    image.classList.remove("broken");
    image.src = image.getAttribute("src"); // loads again, also by srcset
  }
  for (const again of todo) again();
}
