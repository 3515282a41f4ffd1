// The answer to a query on screen: the grid, its limits, the lines around it, and what is said when there is none.

import { href } from "./address.js";
import * as api from "./api.js";
import * as asked from "./asked.js";
import * as connection from "./connection.js";
import { byId, element } from "./element.js";
import * as grid from "./grid.js";
import * as precision from "./precision.js";
import * as radius from "./radius.js";

const SLOW_MS = 180; // a wait that is worth showing
const GREY = 12; // tiles that stand for those to come

let found = null; // an answer of the service, and its key; null while nothing is there
let state = null; // what the address says
let change = null; // of the address: radius or at_least
const nearEnd = new IntersectionObserver((seen) => seen.some(({ isIntersecting }) => isIntersecting) && more(), {
  rootMargin: "600px",
});

export function start({ changed }) {
  change = changed;
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

/** Show an answer. `info` is what the service says of itself; `by_radius` is the precision measured for such queries, or null. */
export function present(answer, asking, info, by_radius) {
  found = answer;
  state = asking;
  byId("radius").hidden = false;
  asked.show(state, found.query);
  radius.prepare(info.bits, by_radius);
  radius.show(state.radius);
  precision.show(state.at_least, info.precision_measured);
  grid.show(found.hits, link);
  around();
  say(found.hits.length ? `${count()} results.` : byId("said").textContent);
}

/** While the slider moves: hide what is further, of the hits that are there. */
export function preview(within) {
  if (found) grid.limit(found.hits, within);
}

/** The lines around the grid. */
function around() {
  byId("more").hidden = isWhole();
  const took = `${found.searched.toLocaleString("en")} searched in ${found.took_ms.toFixed(1)} ms`;
  byId("count").textContent = limits() ? `${count()}${limits()} · ${took}` : took;
  ending();
}

function limits() {
  const within = state.radius === null ? "" : ` within ${state.radius}`;
  return state.at_least === null ? within : `${within} with a precision of at least ${state.at_least}`;
}

export function clear() {
  found = null;
  empty();
  byId("said").hidden = true;
}

/** What the page or the service cannot do, in a sentence, with what to do about it. */
export function refuse({ message, hint = "", nearest = null }) {
  found = null;
  empty();
  if (nearest && state?.kind === "text") {
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
    mine.next = answer.hits.length ? answer.next : null; // precision falls from page to page: the next has none either
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
  around();
}

/** The observer tells of changes only: an end that is still near after more hits came is seen by observing it anew. */
function lookAgain() {
  nearEnd.unobserve(byId("more"));
  nearEnd.observe(byId("more"));
}

const link = (hit) => href({ ...state, item: hit.id });

/** Whether there is no more to load. */
export function isWhole() {
  return !found.next || !found.hits.length;
}

const count = () => `${found.hits.length.toLocaleString("en")}${isWhole() ? "" : " and more"}`;

/** The line below the grid, or the sentence instead of it. */
function ending() {
  byId("said").hidden = true;
  byId("end").hidden = !found.hits.length || !isWhole();
  byId("end").textContent = `That is all${limits()}.`;
  if (found.hits.length) return;
  const { nearest, below } = found;
  const show = (what, to) => element("button", { class: "plain", type: "button", click: () => change(to) }, what);
  if (below) {
    const best = nearest.precision === null ? "That of the best hit was not measured." : `The best hit has ${nearest.precision.toFixed(2)}.`;
    tell(`Nothing${state.radius === null ? "" : ` within ${state.radius}`} reaches a precision of ${state.at_least}. ${best}`,
      [show("show all", { at_least: null })]);
  } else if (nearest) {
    tell(`Nothing within ${state.radius}; nearest is at ${nearest.distance}`, [show("show", { radius: nearest.distance })]);
  } else {
    tell("There is nothing to find: no item has a code of this kind.", []);
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
  for (const id of ["radius", "sure", "more", "end", "said"]) byId(id).hidden = true;
  byId("count").textContent = "";
}

/** For screen readers: said once, when a search is over. */
function say(sentence) {
  byId("live").textContent = sentence;
}
