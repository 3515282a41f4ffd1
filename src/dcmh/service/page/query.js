// The line that shows the query: the words that were used, the picture that was sent, or the item to find similar ones for.

import { href, without } from "./address.js";
import * as api from "./api.js";
import { byId, element } from "./element.js";

const line = byId("query");
const previews = new Map(); // code → object URL of its picture, until a reload

export function remember(code, file) {
  if (!previews.has(code)) previews.set(code, URL.createObjectURL(file));
}

export function clear() {
  line.replaceChildren();
}

/** `state` comes from the address, `query` from the answer. */
export function show(state, query) {
  const first = { text: words, code: picture, similar: item, examples: () => [] }[state.kind](state, query);
  line.replaceChildren(...first, ...examples(state, "like", "like"), ...examples(state, "unlike", "not like"), ...filters(state));
}

/** The items that the hits should be like, or not: pictures that can be taken away. */
function examples(state, name, term) {
  const made = state[name].map((id) => {
    const image = element("img", { class: "sent", alt: `item ${id}`, src: api.thumbnailUrl(id, 128) });
    return part(state, name, id, image, `${term} item ${id}`);
  });
  return made.length ? [element("span", { class: "term" }, term), ...made] : [];
}

const NAMES = { label: "label", folder: "in", since: "since", until: "until", where: "" };

function filters(state) {
  return Object.entries(NAMES).flatMap(([name, term]) => [state[name] ?? []].flat().map((value) =>
    part(state, name, value, element("span", {}, `${term} `, element("b", {}, value)), `${term} ${value}`)));
}

/** A part of the query, as a link to the query without it. */
function part(state, name, value, shown, label) {
  return element("a", { class: "part", href: href(without(state, name, value)), "aria-label": `Remove: ${label.trim()}` },
    shown, element("span", { class: "cross", "aria-hidden": "true" }, "×"));
}

/** The same query with one of its words replaced. */
export function replaced(text, word, by) {
  const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return text.replace(new RegExp(`(?<![\\p{L}\\p{N}_])${escaped}(?![\\p{L}\\p{N}_])`, "giu"), by);
}

function words(state, query) {
  const excluded = query.without.map((word) => element("s", { class: "ignored" }, word));
  return [...understood(state, query), ...(excluded.length ? [element("span", { class: "term" }, "without"), ...excluded] : [])];
}

function understood(state, { used, ignored, nearest, corrected }) {
  if (Object.keys(corrected).length) return insteadOf(state, corrected);
  if (!ignored.length) return [element("span", { class: "term" }, "results for"), element("b", { class: "used" }, state.value)];
  const how = used.length ? "used" : "found in texts and labels only"; // the model knows none of the words
  const parts = [element("span", { class: "term" }, how), ...used.map((word) => element("b", { class: "used" }, word))];
  if (used.length) parts.push(element("span", { class: "term" }, "ignored"));
  for (const word of ignored) {
    parts.push(used.length ? element("s", { class: "ignored" }, word) : element("b", { class: "used" }, word));
    const known = nearest[word]?.find((other) => !used.includes(other));
    if (!known) continue;
    const value = replaced(state.value, word, known);
    parts.push(element("a", { class: "instead", href: href({ ...state, value, item: null }) }, `${known}?`));
  }
  return parts;
}

/** What was searched for in place of misspelt words, and a link for each that takes it as it is written: in quotation marks. */
function insteadOf(state, corrected) {
  const typed = Object.keys(corrected);
  const value = typed.reduce((text, word) => replaced(text, word, corrected[word]), state.value);
  const links = typed.map((word) => element("a", {
    class: "instead", href: href({ ...state, value: replaced(state.value, word, `"${word}"`), item: null }),
    "aria-label": `Search for ${word} as it is written`,
  }, word));
  return [element("span", { class: "term" }, "results for"), element("b", { class: "used" }, value),
    element("span", { class: "term" }, "instead of"), ...links];
}

function picture(state) {
  const preview = previews.get(state.value);
  const name = state.name || "a picture";
  const kept = preview
    ? "The address holds its code, not the picture: a reload keeps the results."
    : "These are the results for its code; the picture itself is not stored.";
  return [
    preview ? element("img", { class: "sent", src: preview, alt: "The picture you sent" }) : null,
    element("span", {}, element("span", { class: "term" }, "near "), element("b", {}, name),
      element("span", { class: "aside" }, kept)),
  ].filter(Boolean);
}

function item(state) {
  const name = element("b", {}, `item ${state.value}`);
  const image = element("img", { class: "sent", alt: "" });
  image.hidden = true;
  api.item(state.value).then((record) => {
    name.textContent = record.text || record.name;
    if (!record.thumbnail) return;
    image.src = api.thumbnailUrl(record.id, 128);
    image.hidden = false;
  }).catch(() => {}); // the results do not depend on it
  const link = element("a", { href: href({ ...state, item: state.value }), "data-item": state.value }, name);
  return [image, element("span", {}, element("span", { class: "term" }, "more like "), link)];
}
