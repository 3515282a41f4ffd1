// The results of a query: the grid, its filters, the lines around it, and the message if there are none.

import { href, isFiltered } from "./address.js";
import * as api from "./api.js";
import * as queryLine from "./query.js";
import * as connection from "./connection.js";
import { byId, element } from "./element.js";
import * as filters from "./filters.js";
import * as grid from "./grid.js";
import * as precision from "./precision.js";
import * as radius from "./radius.js";
import * as selection from "./selection.js";

const SLOW_MS = 180; // before the page shows that it is waiting
const PLACEHOLDERS = 12; // grey tiles while waiting

let found = null; // the answer on screen, with its key; null if there is none
let state = null; // the state in the address
let change = null; // changes radius or at_least in the address
const nearEnd = new IntersectionObserver((seen) => seen.some(({ isIntersecting }) => isIntersecting) && more(), {
  rootMargin: "600px",
});

export function start({ changed }) {
  change = changed;
  byId("more").addEventListener("click", more);
  nearEnd.observe(byId("more"));
}

export const current = () => found;

/** The answer to `request`; the page shows that it is waiting. Shows a refusal and returns undefined. */
export async function wait(request, signal, asking) {
  state = asking;
  found = null;
  const place = byId("answer");
  const slow = setTimeout(() => {
    place.classList.add("busy");
    say("Searching");
    if (byId("message").hidden && !grid.isFilled()) grid.placeholders(PLACEHOLDERS);
  }, SLOW_MS);
  try {
    return await request();
  } catch (error) {
    if (signal.aborted) throw new DOMException("Another search has started.", "AbortError");
    if (!(error instanceof api.Problem)) {
      empty();
      grid.placeholders(PLACEHOLDERS);
      throw error;
    }
    refuse(error);
    return undefined;
  } finally {
    clearTimeout(slow);
    if (!signal.aborted) place.classList.remove("busy");
  }
}

/** Show an answer. `info`: /api/info; `by_radius`: the precision measured for such queries, or null. */
export function present(answer, asking, info, by_radius) {
  found = answer;
  state = asking;
  byId("radius").hidden = false;
  queryLine.show(state, found.query);
  radius.prepare(info.bits, by_radius);
  radius.show(state.radius);
  precision.show(state.at_least, info.precision_measured);
  filters.show(state);
  selection.clear();
  grid.show(found.hits, link);
  around();
  say(found.hits.length ? `${count()} results. ${unlikely(found)}`.trim() : byId("message").textContent);
}

/** While the slider moves: hide the loaded hits that are farther. */
export function preview(within) {
  if (found) grid.limit(found.hits, within);
}

/** The lines around the grid. */
function around() {
  byId("more").hidden = isWhole();
  const took = `${found.searched.toLocaleString("en")} searched in ${found.took_ms.toFixed(1)} ms`;
  byId("count").textContent = limits() ? `${count()}${limits()} · ${took}` : took;
  byId("unlikely").textContent = unlikely(found);
  byId("unlikely").hidden = !unlikely(found);
  ending();
}

/** Said if the service judges that probably nothing matches. */
function unlikely({ unlikely, hits }) {
  const known = hits.map(({ precision }) => precision).filter((precision) => precision !== null);
  const why = known.length ? `the best hit has a precision of only ${Math.max(...known).toFixed(2)}` : "such low scores are seldom right";
  return unlikely && !limits() ? `Probably nothing matches: ${why}.` : "";
}

function limits() {
  const within = state.radius === null ? "" : ` within ${state.radius}`;
  return state.at_least === null ? within : `${within} with a precision of at least ${state.at_least}`;
}

export function clear() {
  found = null;
  empty();
  byId("message").hidden = true;
}

/** Show why there are no results, and what to do. */
export function refuse({ message, hint = "", nearest = null }) {
  found = null;
  empty();
  if (nearest && state?.kind === "text") {
    const offers = nearest.map((word) => element("a", { class: "chip", href: href({ ...state, value: word, item: null }) }, word));
    tell(`No word of this query is in the vocabulary${offers.length ? "; similar words:" : "."}`, offers,
      "The search only knows words from its own texts. Suggestions show them while you type.");
  } else {
    tell(message, [], hint);
  }
  if (state && isFiltered(state)) filters.show(state); // one of them may be the reason
  say(byId("message").textContent);
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
    observeAgain();
  } catch (error) {
    if (error instanceof api.Unavailable) connection.lost(error, more);
    else if (error instanceof api.Problem) mine.next = null; // the service goes no further
    else throw error;
  } finally {
    mine.loading = false;
  }
  if (mine !== found) return;
  grid.show(mine.hits, link, { append: true });
  around();
}

/** The observer only reports changes: observe again, in case the end is still near after more hits. */
function observeAgain() {
  nearEnd.unobserve(byId("more"));
  nearEnd.observe(byId("more"));
}

const link = (hit) => href({ ...state, item: hit.id });

/** Whether all hits are loaded. */
export function isWhole() {
  return !found.next || !found.hits.length;
}

const count = () => `${found.hits.length.toLocaleString("en")}${isWhole() ? "" : " and more"}`;

/** The line below the grid, or the message in its place. */
function ending() {
  byId("message").hidden = true;
  byId("end").hidden = !found.hits.length || !isWhole();
  byId("end").textContent = `That is all${limits()}.`;
  if (found.hits.length) return;
  const { nearest, below } = found;
  const show = (what, to) => element("button", { class: "plain", type: "button", click: () => change(to) }, what);
  if (below) {
    const best = nearest.precision === null ? "The precision of the best hit was not measured." : `The best hit has ${nearest.precision.toFixed(2)}.`;
    tell(`Nothing${state.radius === null ? "" : ` within ${state.radius}`} reaches a precision of ${state.at_least}. ${best}`,
      [show("show all", { at_least: null })]);
  } else if (nearest) {
    tell(`No result within ${state.radius}; the nearest is at ${nearest.distance}`, [show("show", { radius: nearest.distance })]);
  } else if (isFiltered(state)) {
    tell("No item passes these filters.", [show("clear the filters", { label: [], folder: null, since: null, until: null, where: [] })]);
  } else {
    tell("There is nothing to search: no item has a code of this kind.", []);
  }
}

function tell(sentence, actions, hint = "") {
  const words = element("p", { class: "sentence" }, sentence, actions.flatMap((action) => [" ", action]));
  byId("message").replaceChildren(words, ...(hint ? [element("p", { class: "hint" }, hint)] : []));
  byId("message").hidden = false;
}

function empty() {
  queryLine.clear();
  grid.clear();
  selection.clear();
  for (const id of ["radius", "sure", "more", "end", "message", "filters", "unlikely"]) byId(id).hidden = true;
  byId("count").textContent = "";
}

/** Announce to screen readers. */
function say(sentence) {
  byId("live").textContent = sentence;
}
