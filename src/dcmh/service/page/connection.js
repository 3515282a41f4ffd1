// When the service does not answer: says so, asks again until it does, then does what could not be done.

import { isWell } from "./api.js";
import { byId } from "./element.js";

const FIRST_MS = 500;
const LONGEST_MS = 4000;
const banner = byId("connection");
let waiting = []; // what to do once the service is back
let timer = null;
let pause = 0;

/** `error` is an api.Later; `again` is called once the service answers. */
export function lost(error, again) {
  waiting.push(again);
  banner.textContent = error.message;
  banner.classList.remove("back");
  if (timer === null) later(1000 * error.seconds);
}

/** Forget what was to be done again: something else is asked now. */
export function forget() {
  waiting = [];
}

function later(least = 0) {
  pause = Math.min(LONGEST_MS, pause ? 1.6 * pause : FIRST_MS);
  timer = setTimeout(look, Math.max(pause, least));
}

async function look() {
  if (!(await isWell())) {
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
    image.src = image.getAttribute("src"); // loads anew, also by srcset
  }
  for (const again of todo) again();
}
