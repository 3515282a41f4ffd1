// The answer to a query on screen: the grid, the radius on it, the lines around it, and what is said when there is none.

import { href } from "./address.js";
import * as api from "./api.js";
import * as asked from "./asked.js";
import * as connection from "./connection.js";
import { byId, element } from "./element.js";
import * as grid from "./grid.js";
import * as radius from "./radius.js";

const SLOW_MS = 180; // a wait that is worth showing
const GREY = 12; // tiles that stand for those to come

let found = null; // {key, query, hits, next, searched, took_ms}, or null while nothing is there
let state = null; // what the address says
let setRadius = null;
const nearEnd = new IntersectionObserver((seen) => seen.some(({ isIntersecting }) => isIntersecting) && more(), {
  rootMargin: "600px",
});

export function start({ changeRadius }) {
  setRadius = changeRadius;
  byId("more").addEventListener("click", more);
  nearEnd.observe(byId("more"));
}

export const current = () => found;

/** The answer of `request`; while it lasts the page shows that it waits. A refusal is shown, and gives undefined. */
export async function wait(request, signal, asking) {
  state = asking;
  found = null;
  const place = byId("answer");
  const slow = setTimeout(() => {
    place.classList.add("busy");
    say("Searching");
    if (byId("said").hidden && !grid.isFilled()) grid.placeholders(GREY);
  }, SLOW_MS);
  try {
    return await request();
  } catch (error) {
    if (signal.aborted) throw new DOMException("Something else is asked now.", "AbortError");
    if (!(error instanceof api.Problem)) {
      empty();
      grid.placeholders(GREY);
      throw error;
    }
    refuse(error);
    return undefined;
  } finally {
    clearTimeout(slow);
    if (!signal.aborted) place.classList.remove("busy");
  }
}

/** Show an answer: `by_radius` is the precision measured for such queries, or null. */
export function present(answer, asking, bits, by_radius) {
  found = answer;
  state = asking;
  byId("radius").hidden = false;
  asked.show(state, found.query);
  radius.prepare(bits, by_radius);
  grid.show(found.hits, link);
  const shown = limit(state);
  say(shown ? `${count(shown)} results. Nearest is at ${found.hits[0].distance}.` : byId("said").textContent);
}

/** Apply the radius to what is there, and say what that leaves. */
export function limit(asking) {
  state = asking;
  radius.show(state.radius);
  const shown = grid.limit(found.hits, state.radius, link);
  byId("more").hidden = isWhole();
  const within = state.radius === null ? "" : `${count(shown)} within ${state.radius} · `;
  const took = `${found.searched.toLocaleString("en")} searched in ${found.took_ms.toFixed(1)} ms`;
  byId("count").textContent = `${within}${took}`;
  ending(shown, found.hits[shown]);
  return shown;
}

export function clear() {
  found = null;
  empty();
  byId("said").hidden = true;
}

/** What the page or the service cannot do, in a sentence, with what to do about it. */
export function refuse({ message, type = "", hint = "", nearest = [] }) {
  found = null;
  empty();
  if (type === "query-not-encodable" && state?.kind === "text") {
    const offers = nearest.map((word) => element("a", { class: "chip", href: href({ ...state, value: word, item: null }) }, word));
    tell(`No word of this query is in the vocabulary${offers.length ? "; nearest:" : "."}`, offers,
      "The search knows the words of its own texts, and no others. Suggestions show them while you type.");
  } else {
    tell(message, [], hint);
  }
  say(byId("said").textContent);
}

export async function more() {
  const mine = found;
  if (!mine?.next || mine.loading) return;
  mine.loading = true;
  try {
    const answer = await api.following(mine.next);
    const known = new Set(mine.hits.map(({ id }) => id)); // the index may have changed in between
    mine.hits.push(...answer.hits.filter(({ id }) => !known.has(id)));
    mine.next = answer.next;
    lookAgain();
  } catch (error) {
    if (error instanceof api.Later) connection.lost(error, more);
    else if (error instanceof api.Problem) mine.next = null; // as far as the service goes
    else throw error;
  } finally {
    mine.loading = false;
  }
  if (mine !== found) return;
  grid.show(mine.hits, link, { append: true });
  limit(state);
}

/** The observer tells of changes only: an end that is still near after more hits came is seen by observing it anew. */
function lookAgain() {
  nearEnd.unobserve(byId("more"));
  nearEnd.observe(byId("more"));
}

const link = (hit) => href({ ...state, item: hit.id });

/** Whether all that the radius allows is there; hits come nearest first. */
export function isWhole() {
  return !found.next || (state.radius !== null && found.hits.at(-1)?.distance > state.radius);
}

const count = (shown) => `${shown.toLocaleString("en")}${isWhole() ? "" : " and more"}`;

/** The line below the grid, or the sentence instead of it. */
function ending(shown, beyond) {
  byId("said").hidden = true;
  byId("end").hidden = shown === 0 || !isWhole();
  const at = beyond?.distance;
  const show = () => element("button", { class: "plain", type: "button", click: () => setRadius(at) }, "show");
  if (shown === 0) {
    if (beyond) tell(`Nothing within ${state.radius}; nearest is at ${at}`, [show()]);
    else tell("There is nothing to find: no item has a code of this kind.", []);
  } else if (beyond) {
    byId("end").replaceChildren(`That is all within ${state.radius}; the next is at ${at} `, show());
  } else {
    byId("end").replaceChildren("That is all.");
  }
}

function tell(sentence, doings, hint = "") {
  const words = element("p", { class: "sentence" }, sentence, doings.flatMap((doing) => [" ", doing]));
  byId("said").replaceChildren(words, ...(hint ? [element("p", { class: "hint" }, hint)] : []));
  byId("said").hidden = false;
}

function empty() {
  asked.clear();
  grid.clear();
  for (const id of ["radius", "more", "end", "said"]) byId(id).hidden = true;
  byId("count").textContent = "";
}

/** For screen readers: said once, when a search is over. */
function say(sentence) {
  byId("live").textContent = sentence;
}
