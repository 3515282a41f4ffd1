// Type-ahead over the vocabulary: completes the last word in the box (ARIA combobox with a list).

import * as api from "./api.js";
import { byId, element } from "./element.js";

const MAX_SUGGESTIONS = 8;
const PAUSE_MS = 90;
const WORD = /[\p{L}\p{N}'’_-]+$/u;

/** `search(text)` is called when a suggestion is chosen; `leave()` on arrow down without a list. */
export function suggest({ search, leave }) {
  const input = byId("words");
  const list = byId("suggestions");
  let active = -1;
  let timer = null;
  let request = null;

  const options = () => [...list.children];
  const isOpen = () => !list.hidden;

  function close() {
    clearTimeout(timer);
    request?.abort();
    list.hidden = true;
    list.replaceChildren();
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function mark(place) {
    active = place;
    options().forEach((option, at) => option.setAttribute("aria-selected", at === place));
    const option = options()[place];
    if (!option) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", option.id);
    return option.scrollIntoView({ block: "nearest" });
  }

  function take(word) {
    const caret = input.selectionStart ?? input.value.length;
    const before = input.value.slice(0, caret).replace(WORD, word);
    const after = input.value.slice(caret).replace(/^[\p{L}\p{N}'’_-]+/u, "");
    input.value = before + after;
    input.setSelectionRange(before.length, before.length);
    close();
    search(input.value);
  }

  function show(found, prefix) {
    const known = found.filter(({ word }) => word !== prefix);
    if (!known.length || document.activeElement !== input) return close();
    list.replaceChildren(...known.map((entry, place) => row(entry, place, prefix)));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    return mark(-1);
  }

  function row({ word, count }, place, prefix) {
    const text = element("span", {}, element("b", {}, word.slice(0, prefix.length)), word.slice(prefix.length));
    const used = Number.isInteger(count) ? element("span", { class: "times" }, count.toLocaleString("en")) : null;
    if (used) used.title = `in ${count.toLocaleString("en")} texts`;
    const option = element("li", { id: `word-${place}`, role: "option", "aria-selected": "false" }, text, used);
    option.addEventListener("pointerdown", (event) => event.preventDefault()); // keep the focus in the box
    option.addEventListener("click", () => take(word));
    return option;
  }

  async function look() {
    const [prefix] = input.value.slice(0, input.selectionStart ?? undefined).match(WORD) ?? [""];
    request?.abort();
    if (!prefix) return close();
    request = new AbortController();
    try {
      const { words } = await api.words(prefix.toLowerCase(), MAX_SUGGESTIONS + 1, request.signal);
      show(words.slice(0, MAX_SUGGESTIONS), prefix.toLowerCase());
    } catch (error) {
      if (error.name !== "AbortError") close(); // suggestions are optional
    }
    return undefined;
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, PAUSE_MS);
  });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const last = options().length - 1;
    if (event.key === "ArrowDown" && !isOpen()) {
      if (leave()) event.preventDefault();
    } else if (event.key === "ArrowDown" || (event.key === "ArrowUp" && isOpen())) {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      const next = active + step;
      mark(next > last ? -1 : next < -1 ? last : next);
    } else if (event.key === "Enter" && active >= 0) {
      event.preventDefault();
      options()[active].click();
    } else if (event.key === "Escape" && isOpen()) {
      event.preventDefault();
      close();
    }
  });
  return { close };
}
