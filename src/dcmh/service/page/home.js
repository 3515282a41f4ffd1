// The home page: what the collection holds, known words, and what some of them find.

import * as api from "./api.js";
import { href } from "./address.js";
import { drawing, unpack } from "./bits.js";
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
  const sample = element("div", { class: "sample", "aria-hidden": "true" });
  home.replaceChildren(
    element("div", { class: "hero" },
      element("div", {}, element("h1", {}, heading(info)), element("p", { class: "lead" }, lead(info)), chips), sample),
    rows);
  if (!info.items || !info.vocabulary) return;
  const { words } = await api.words("", 60);
  const good = words.map(({ word }) => word).filter((word) => word.length > 2);
  chips.append(...good.slice(0, CHIPS).map((word) => element("a", { class: "chip", href: link(word) }, word)));
  const found = await Promise.all(good.slice(0, ROWS).map((word) => api.searchWords(word, { k: STRIP }).catch(() => null)));
  rows.append(...found.flatMap((answer, at) => (answer?.hits.length ? [row(good[at], answer.hits)] : [])));
  const shown = found.flatMap((answer) => answer?.hits ?? []).find(({ thumbnail: picture }) => picture);
  if (shown) sample.append(...pictureAndCode(await api.item(shown.id), info.bits));
}

/** A picture and its code. */
function pictureAndCode({ id, codes }, bits) {
  const picture = element("a", { class: "frame", href: href({ kind: "home", item: id }), tabindex: "-1" }, thumbnail(id, true));
  return [picture, element("span", { class: "equals" }, "="), drawing(unpack(codes.image, bits), [], "Code")];
}

function heading({ items, asks }) {
  if (!items) return "Nothing here yet";
  const ways = [asks.text && "by words", asks.image && "by a picture"].filter(Boolean);
  return `Search ${count(items, "item")} ${ways.join(" or ")}`;
}

const LANGUAGES = { "use-multilingual": " in 16 languages", minilm: " in English" };

function lead({ items, bits, vocabulary, text_encoder, asks }) {
  if (!items) return "This index has no items. Add some: dcmh index DATA --model MODEL --out INDEX";
  const code = `Each item is stored as a code of ${bits} bits. The fewer bits differ from the code of the query, the nearer it is.`;
  const limited = vocabulary ? `The search knows ${count(vocabulary, "word")} and shows which of yours it used.` : "";
  const known = text_encoder ? `Any words work${LANGUAGES[text_encoder] ?? ""}, even whole sentences.` : limited;
  return `${code} ${known}${asks.image ? " You can also drop a picture anywhere." : ""}`;
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
