// The grid of hits: tiles are links, one of them is in the tab order, arrow keys move between them.

import * as api from "./api.js";
import { breakable, byId, element } from "./element.js";

const grid = byId("grid");

/** `up()` is called when arrow up leaves the first row. */
export function start({ up }) {
  grid.addEventListener("keydown", (event) => {
    const here = event.target.closest("a");
    if (!here || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const to = neighbour(event.key, here);
    if (to === undefined) return;
    event.preventDefault();
    if (to === null) up();
    else focus(to);
  });
  grid.addEventListener("focusin", (event) => {
    const tile = event.target.closest("a");
    if (tile) onlyStop(tile);
  });
}

/** Show all hits, or only append the new ones. */
export function show(hits, link, { append = false } = {}) {
  const from = append ? grid.children.length : 0;
  const made = hits.slice(from).map((hit) => element("li", {}, tile(hit, link(hit)), tick(hit)));
  if (append) grid.append(...made);
  else grid.replaceChildren(...made);
  keepStop();
}

/** Hide the tiles outside the radius. */
export function limit(hits, radius) {
  [...grid.children].forEach((place, at) => {
    place.hidden = radius !== null && hits[at].distance > radius;
  });
  keepStop();
}

function keepStop() {
  const stop = grid.querySelector('li:not([hidden]) a[tabindex="0"]');
  if (!stop && visible()[0]) onlyStop(visible()[0]);
}

/** Grey tiles while waiting. */
export function placeholders(count) {
  grid.replaceChildren(...Array.from({ length: count }, () =>
    element("li", { class: "waiting", "aria-hidden": "true" }, element("span", { class: "frame" }))));
}

export const isFilled = () => grid.children.length > 0;

export function clear() {
  grid.replaceChildren();
}

export function focusFirst() {
  const [first] = visible();
  if (first) focus(first);
  return Boolean(first);
}

export function focusItem(id) {
  const found = visible().find((one) => one.dataset.id === String(id));
  if (found) focus(found);
  return Boolean(found);
}

/** A picture that shows its caption if it cannot be loaded. */
export function thumbnail(id, eager = false) {
  const loading = eager ? "eager" : "lazy";
  const image = element("img", { alt: "", width: 256, height: 256, loading, decoding: "async", draggable: "false" });
  image.addEventListener("error", () => image.classList.add("broken"));
  image.addEventListener("load", () => image.classList.add("loaded"));
  image.srcset = `${api.thumbnailUrl(id, 768)} 2x`; // cut to a square, so larger than the tile
  image.src = api.thumbnailUrl(id, 384);
  return image;
}

function tile(hit, href) {
  const caption = hit.text || hit.name;
  const picture = hit.thumbnail ? thumbnail(hit.id) : element("span", { class: "words-only" }, caption);
  return element("a", { class: "tile", href, "data-id": hit.id, tabindex: "-1", draggable: "false" },
    element("span", { class: "frame", "aria-hidden": !hit.thumbnail && "true" }, picture),
    element("span", { class: "caption" }, hit.text || breakable(hit.name)),
    element("span", { class: "why" }, why(hit)));
}

/** Selects a hit; with the keyboard, the space bar on its tile does. */
function tick({ id, text, name }) {
  return element("input", { class: "tick", type: "checkbox", value: id, tabindex: "-1", "aria-label": `Select ${text || name}` });
}

export const PRECISION = "the share of relevant items among such hits, measured on items that the model did not learn from. " +
  "For a picture or more than two words, items are relevant that have at least one label in common with it.";

/** Why a hit was found: query words in its text, fine score, distance, and the precision of such hits. */
export function why({ words, fine, distance, bits, precision }) {
  const parts = [
    words.length ? element("span", { class: "contains" }, `contains: ${words.join(", ")}`) : null,
    fine === null ? null : element("span", { title: "Similarity of the fine vectors, at most 1" }, `fine score ${fine.toFixed(2)}`),
    element("span", { class: "distance", title: `${distance} of the ${bits} bits of its code differ from the query's` },
      `${distance} ${distance === 1 ? "bit" : "bits"}`),
    precision === null ? null : element("span", { title: `Precision: ${PRECISION}` }, `precision ${precision.toFixed(2)}`),
  ];
  return parts.filter(Boolean).flatMap((part, at) => (at ? [element("span", { class: "dot" }, " · "), part] : [part]));
}

function visible() {
  return [...grid.querySelectorAll("li:not([hidden]) > a")];
}

function onlyStop(tile) {
  for (const other of grid.querySelectorAll('a[tabindex="0"]')) other.tabIndex = -1;
  tile.tabIndex = 0;
}

function focus(tile) {
  onlyStop(tile);
  tile.focus();
}

/** The tile that a key moves to; null: up and out of the grid; undefined: not a navigation key. */
function neighbour(key, here) {
  const tiles = visible();
  const at = tiles.indexOf(here);
  const top = (tile) => tile.parentElement.offsetTop;
  const columns = tiles.filter((one) => top(one) === top(tiles[0])).length;
  const clamp = (place) => tiles[Math.max(0, Math.min(tiles.length - 1, place))];
  switch (key) {
    case "ArrowRight": return clamp(at + 1);
    case "ArrowLeft": return clamp(at - 1);
    case "ArrowDown": return clamp(at + columns);
    case "ArrowUp": return at < columns ? null : tiles[at - columns];
    case "Home": return tiles[0];
    case "End": return tiles.at(-1);
    default: return undefined;
  }
}
