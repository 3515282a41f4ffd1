// The home page: what the collection holds, and what some of its topics find.

import * as api from "./api.js";
import { href } from "./address.js";
import { byId, element } from "./element.js";
import { thumbnail } from "./grid.js";

const home = byId("home");
const CHIPS = 14;
const ROWS = 4;
const STRIP = 8;
let made = null; // the info that it was made from

/** Fill the page, once. */
export async function show(info) {
  if (made === info) return;
  made = info;
  try {
    await fill(info);
  } catch (error) {
    made = null;
    throw error;
  }
}

async function fill(info) {
  const rows = element("div", { class: "rows" });
  const chips = element("p", { class: "chips" });
  home.replaceChildren(
    element("div", { class: "hero" }, element("h1", {}, heading(info)), element("p", { class: "lead" }, lead(info)), chips), rows);
  if (!info.items || !info.asks.text) return;
  const waiting = element("p", { class: "hint" }, "Looking for topics in the collection…");
  rows.append(waiting);
  const topics = (await api.overview().finally(() => waiting.remove())).topics.map(({ word }) => word);
  chips.append(...topics.slice(0, CHIPS).map((word) => element("a", { class: "chip", href: link(word) }, word)));
  const strip = (word) => api.search([["text", word], ["k", STRIP]]).catch(() => null);
  const found = await Promise.all(topics.slice(0, ROWS).map(strip));
  rows.append(...found.flatMap((answer, at) => (answer?.hits.length ? [row(topics[at], answer.hits)] : [])));
}

function heading({ items, asks }) {
  if (!items) return "Nothing here yet";
  const ways = [asks.text && "by words", asks.image && "by a picture"].filter(Boolean);
  return ways.length ? `Search ${count(items, "item")} ${ways.join(" or ")}` : count(items, "item");
}

const LANGUAGES = { "use-multilingual": " in 16 languages", minilm: " in English" };

function lead({ items, name, vocabulary, text_encoder, asks }) {
  if (!items) return "This index has no items. Add some: dcmh index DATA --model MODEL --out INDEX";
  if (!asks.text && !asks.image) return `Its model reads neither words nor pictures. Search with a vector: dcmh search ${name} vector.npy`;
  const limited = vocabulary ? `The search knows ${count(vocabulary, "word")} and shows which of yours it used.` : "";
  const known = text_encoder ? `Any words work${LANGUAGES[text_encoder] ?? ""}, even whole sentences.` : limited;
  return `${known}${asks.image ? " You can also drop a picture anywhere." : ""}`;
}

function row(word, hits) {
  const tiles = hits.map((hit) => {
    const caption = hit.text || hit.name;
    const picture = hit.thumbnail ? thumbnail(hit.id, true) : element("span", { class: "words-only" }, caption);
    if (hit.thumbnail) picture.alt = caption;
    return element("li", {}, element("a", { class: "frame", href: `${link(word)}&item=${hit.id}`, title: caption }, picture));
  });
  return element("section", { class: "row" },
    element("h2", {}, element("a", { href: link(word) }, word)), element("ul", { role: "list" }, tiles));
}

const link = (word) => href({ kind: "text", value: word });
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
