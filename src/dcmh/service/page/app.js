// The page: the address determines what is on screen.

import { asks, href, modifiers, read } from "./address.js";
import * as api from "./api.js";
import * as queryLine from "./query.js";
import * as connection from "./connection.js";
import * as duplicates from "./duplicates.js";
import { byId, element } from "./element.js";
import * as filters from "./filters.js";
import * as grid from "./grid.js";
import * as home from "./home.js";
import * as item from "./item.js";
import { pictures } from "./picture.js";
import * as precision from "./precision.js";
import * as radius from "./radius.js";
import * as results from "./results.js";
import * as selection from "./selection.js";
import { suggest } from "./typeahead.js";

const PAGE_SIZE = 60; // hits per request
const MAX_ANSWERS = 20; // kept for the back button
const MAX_UPLOAD = 20_000_000; // bytes, until the service has sent its limit

let info = null;
let state = read();
let request = null; // aborts the running request
let turn = 0; // number of the latest action, so that older ones stop
let copiesShown = false; // opening one of them leaves them on screen
let inBox = null; // the query when the box was last filled
const answers = new Map(); // key of a search → answer, newest last
const input = byId("words");

// -- the address ------------------------------------------------------------------------------------------------------

/** Change the address and show its content. */
function go(change, { replace = false, opened = false } = {}) {
  history[replace ? "replaceState" : "pushState"]({ opened }, "", href({ ...state, ...change }));
  return show();
}

/** Show the content of the address; send a request only if it is not on screen yet. */
async function show() {
  turn += 1;
  const mine = turn;
  state = read();
  showView(state.kind);
  const query = `${state.kind} ${state.value}`;
  if (inBox !== query) input.value = state.kind === "text" ? state.value : ""; // else the user may be typing
  inBox = query;
  document.title = { home: "dcmh", text: `${state.value} · dcmh`, similar: "More like this · dcmh", examples: "More like these · dcmh", duplicates: "Copies · dcmh" }[state.kind]
    ?? `${state.name || "Picture"} · dcmh`;
  try {
    if (info === null) await learn();
    if (mine !== turn) return;
    if (!info.precision_measured) state.at_least = null;
    if (state.kind === "home") {
      stop();
      results.clear();
      await home.show(info);
    } else if (state.kind === "duplicates") {
      if (!copiesShown) {
        results.clear();
        await duplicates.show(stop());
        copiesShown = mine === turn;
      }
    } else if (results.current()?.key !== asks(state)) {
      await search();
    }
    if (mine === turn) await showItem();
  } catch (error) {
    if (error.name === "AbortError" || mine !== turn) return;
    if (!(error instanceof api.Unavailable)) throw error;
    connection.lost(error, show);
  }
}

/** Show the home page, the copies, or the results. */
function showView(kind) {
  const isOf = { home: kind === "home", duplicates: kind === "duplicates", answer: !["home", "duplicates"].includes(kind) };
  for (const [id, isShown] of Object.entries(isOf)) byId(id).hidden = !isShown;
  document.body.classList.toggle("at-home", isOf.home);
  copiesShown &&= isOf.duplicates;
}

async function learn() {
  info = await api.info();
  byId("size").textContent = `${info.items.toLocaleString("en")} ${info.items === 1 ? "item" : "items"} · ${info.bits} bits`;
  byId("choose").hidden = !info.asks.image;
  input.disabled = !info.asks.text;
  if (!info.asks.text) input.placeholder = info.asks.image ? "Search this collection with pictures" : "Search with vectors only";
  const whose = info.attribution ? [element("p", {}, info.attribution)] : [];
  byId("foot").replaceChildren(...whose,
    element("p", {}, `${info.name} · dcmh ${info.versions.dcmh} · `, element("a", { href: href({ kind: "duplicates" }) }, "Copies"), " · ",
      element("a", { href: "docs" }, "API")));
}

// -- searching --------------------------------------------------------------------------------------------------------

function stop() {
  request?.abort();
  request = new AbortController();
  connection.forget();
  return request.signal;
}

const page = (...query) => [...query, ["k", PAGE_SIZE], ...modifiers(state)];

async function search() {
  const signal = stop();
  const key = asks(state);
  const send = {
    text: () => api.search(page(["text", state.value]), signal),
    examples: () => api.search(page(), signal),
    similar: () => api.similar(state.value, page(), signal),
    code: () => api.search(page(["code", state.value], ["modality", state.modality ?? info.asks.image]), signal),
  }[state.kind];
  const answer = answers.get(key) ?? (await results.wait(send, signal, state));
  if (answer) results.present(keep(key, answer), state, info, measured(answer));
}

/** A picture is sent once; after that its code represents it, also in the address. */
async function searchPicture(file) {
  turn += 1;
  const signal = stop();
  item.close();
  showView("code");
  input.value = "";
  inBox = null;
  try {
    const answer = await results.wait(() => api.searchPicture(file, page(), signal), signal, { ...state, kind: "code" });
    if (!answer) return;
    const { key, modality } = answer.query;
    const to = { kind: "code", value: key, modality, name: file.name || "a pasted picture", item: null };
    queryLine.remember(key, file);
    keep(asks({ ...state, ...to }), answer);
    await go(to);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof api.Unavailable)) throw error;
    connection.lost(error, () => searchPicture(file));
  }
}

function keep(key, answer) {
  answers.delete(key);
  answers.set(key, Object.assign(answer, { key }));
  if (answers.size > MAX_ANSWERS) answers.delete(answers.keys().next().value);
  return answer;
}

/** Precision by radius for the modalities of the query and of the hits; null where it was not measured. */
function measured({ query, hits }) {
  const [first] = hits;
  const found = info.measured.find(({ from, to }) => from === query.modality && to === (first?.modality ?? to));
  const known = found?.by_radius.filter(({ precision }) => precision !== null);
  return known ? new Map(known.map(({ radius: within, precision }) => [within, precision])) : null;
}

// -- one item ---------------------------------------------------------------------------------------------------------

async function showItem() {
  if (state.item === null) {
    const closed = item.close();
    if (closed !== null && !grid.focusItem(closed)) byId("results").focus({ preventScroll: true });
    return;
  }
  const { hits, at } = whereItem();
  await item.open(state.item, {
    bits: info.bits,
    query: results.current()?.query ?? null,
    hit: hits[at] ?? null,
    place: at < 0 ? "" : `${at + 1} of ${hits.length}${results.isWhole() ? "" : "+"}`,
    isFirst: at <= 0,
    isLast: at < 0 || (at === hits.length - 1 && results.isWhole()),
    similar: href({ ...state, kind: "similar", value: state.item, like: [], unlike: [], item: null }),
    filtered: (filter) => href({ ...state, ...filter, item: null }),
  });
}

/** The hits, and which of them is the item; -1 if none. */
function whereItem() {
  const hits = results.current()?.hits ?? [];
  return { hits, at: hits.findIndex(({ id }) => String(id) === state.item) };
}

function closeItem() {
  if (history.state?.opened) history.back();
  else go({ item: null }, { replace: true });
}

async function stepItem(direction) {
  const { at, hits } = whereItem();
  if (at < 0) return;
  if (at + direction === hits.length) await results.more();
  const to = whereItem().hits[at + direction];
  if (to) await go({ item: String(to.id) }, { replace: true, opened: Boolean(history.state?.opened) });
}

// -- start ------------------------------------------------------------------------------------------------------------

item.start({ closed: closeItem, step: stepItem });
grid.start({ up: () => input.focus() });
results.start({
  changed: (change) => {
    go(change, { replace: true });
    byId("radius" in change ? "slider" : "at_least" in change ? "at-least" : "results").focus();
  },
});
filters.start({ changed: (change) => go({ ...change, item: null }) });
selection.start({
  like: (ids) => refine({ like: ids }),
  unlike: (ids) => refine({ unlike: ids }),
});
radius.start({ moved: results.preview, settled: (value) => go({ radius: value }, { replace: true }) });
precision.start((value) => go({ at_least: value }, { replace: true }));
pictures({
  search: searchPicture,
  refuse: (message, hint) => {
    turn += 1;
    stop();
    showView("code");
    results.refuse({ message, hint });
  },
  limit: () => info?.limits.upload_bytes ?? MAX_UPLOAD,
});
const typeahead = suggest({ search: searchText, leave: () => !byId("answer").hidden && grid.focusFirst() });

/** Add examples to the query. What was found for one item, or for a picture, becomes an example itself or is replaced. */
function refine({ like = [], unlike = [] }) {
  const known = state.kind === "similar" ? [state.value] : [];
  const kind = ["text", "code"].includes(state.kind) ? state.kind : "examples";
  const merged = {
    like: [...new Set([...state.like, ...known, ...like])].filter((id) => !unlike.includes(id)),
    unlike: [...new Set([...state.unlike, ...unlike])].filter((id) => !like.includes(id)),
  };
  go({ ...merged, kind, value: kind === "examples" ? "" : state.value, radius: null, item: null });
  scrollTo(0, 0);
  byId("results").focus({ preventScroll: true });
}

function searchText(text) {
  const value = text.trim();
  if (value) go({ kind: "text", value, like: [], unlike: [], item: null });
  else go({ kind: "home", item: null });
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  typeahead.close();
  searchText(input.value);
});

// Links within the page change the address without a reload; with a modifier key they stay links.
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || link.target || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || url.pathname !== location.pathname || url.hash) return;
  event.preventDefault();
  const to = read(url);
  const opened = to.item !== null && asks(to) === asks(state);
  history[url.href === location.href ? "replaceState" : "pushState"]({ opened }, "", url);
  if (!opened) scrollTo(0, 0);
  show().then(() => "similar" in link.dataset && byId("results").focus({ preventScroll: true }));
});

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input:not([type=range]):not([type=checkbox])");
  if (event.key !== "/" || isTyping || item.isOpen() || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  input.focus();
  input.select();
});
addEventListener("popstate", show);
show();
