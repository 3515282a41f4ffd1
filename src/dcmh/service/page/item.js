// The view of one item: picture, text, labels, and its code next to that of the query.

import * as api from "./api.js";
import { differing, drawing, unpack } from "./bits.js";
import { byId, element, shape } from "./element.js";
import { PRECISION, why } from "./grid.js";

const dialog = byId("item");
let latest = 0; // number of the latest request; older answers are dropped
let shown = null; // the id of the item in view

/** `closed()` is called when the user closes the view, `step(-1 or 1)` for the previous or next item. */
export function start({ closed, step }) {
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    closed();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) closed(); // beside the panel
    if (event.target.closest("[data-close]")) closed();
    const button = event.target.closest("[data-step]");
    if (button) step(Number(button.dataset.step));
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("input") || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
}

export const isOpen = () => dialog.open;

/** Close the view; returns the id of its item, or null. */
export function close() {
  const closed = shown;
  latest += 1;
  shown = null;
  if (dialog.open) dialog.close();
  dialog.replaceChildren();
  return closed;
}

/** Show an item. `context`: bits, query (or null), hit (or null), place, isFirst, isLast, similar (an address). */
export async function open(id, context) {
  if (id === shown) return;
  latest += 1;
  const mine = latest;
  const focused = dialog.open ? document.activeElement?.dataset.step : undefined;
  if (!dialog.open) {
    dialog.replaceChildren(panel(context, element("h2", { id: "item-title", tabindex: "-1" }, "Loading…")));
    dialog.showModal();
  }
  let record;
  try {
    record = await api.item(id);
  } catch (error) {
    if (mine === latest) say(error.message, context);
    if (error instanceof api.Problem) return;
    throw error;
  }
  if (mine !== latest) return;
  shown = id;
  dialog.replaceChildren(panel(context, ...content(record, context)));
  dialog.scrollTop = 0;
  const step = focused && dialog.querySelector(`[data-step="${focused}"]:not([disabled])`);
  (step || byId("item-title")).focus();
}

function say(sentence, context) {
  dialog.replaceChildren(panel(context, element("h2", { id: "item-title", tabindex: "-1" }, sentence)));
  byId("item-title").focus();
}

function panel(context, ...children) {
  return element("div", { class: "panel" },
    element("div", { class: "panel-top" },
      element("span", { class: "place" }, context.place),
      stepper(-1, "Previous result", "M12 4l-6 6 6 6", context.isFirst),
      stepper(1, "Next result", "M8 4l6 6-6 6", context.isLast),
      icon({ "data-close": true, "aria-label": "Close" }, "M5 5l10 10M15 5L5 15")),
    ...children);
}

const stepper = (way, label, path, off) => icon({ "data-step": way, "aria-label": label, disabled: off }, path);

function icon(properties, path) {
  const button = element("button", { class: "icon", type: "button", ...properties });
  button.append(shape("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, shape("path", { d: path })));
  return button;
}

function content(record, context) {
  const title = record.text || record.name;
  const labels = (record.labels ?? []).map((label) => element("li", {}, label));
  return [
    record.image ? large(record, title) : null,
    element("div", { class: "facts" },
      element("h2", { id: "item-title", tabindex: "-1" }, title),
      record.text ? element("p", { class: "name" }, record.name) : null,
      labels.length ? element("ul", { class: "labels", role: "list", "aria-label": "Labels" }, labels) : null,
      codes(record, context),
      element("p", { class: "actions" },
        element("a", { class: "button primary", href: context.similar, "data-similar": true }, "More like this"),
        record.image
          ? element("a", { class: "button", href: api.imageUrl(record.id), target: "_blank", rel: "noopener" },
            "Open the picture")
          : null)),
  ];
}

function large(record, title) {
  const image = element("img", { class: "large", alt: title, src: api.imageUrl(record.id) });
  image.addEventListener("load", () => image.style.setProperty("--ratio", image.naturalWidth / image.naturalHeight || 1));
  image.addEventListener("error", () => image.replaceWith(element("p", { class: "large missing" },
    "The picture cannot be shown: its file is missing or cannot be read.")));
  return image;
}

function codes(record, { bits, query, hit }) {
  const kept = Object.entries(record.codes ?? {}).map(([modality, hex]) => [modality, unpack(hex, bits)]);
  if (!kept.length) return null;
  const what = (modality) => (modality === "image" ? "Its picture" : modality === "text" ? "Its words" : modality);
  if (!query?.code) {
    const drawn = kept.map(([modality, code]) => figure(what(modality), code, [], `Code of ${bits} bits`));
    return element("section", { class: "codes", "aria-label": "Code" },
      element("p", { class: "differ" }, `A code of ${bits} bits.`), element("div", { class: "pair" }, drawn));
  }
  const ours = unpack(query.code, bits);
  const [modality, theirs] = compared(kept, ours, hit);
  const places = differing(ours, theirs);
  return element("section", { class: "codes", "aria-label": "Code" },
    element("p", { class: "differ" }, element("strong", {}, `${places.length} of ${bits} bits differ`),
      ` from the query${places.length ? `: ${places.join(", ")}` : ""}.`),
    element("div", { class: "pair" },
      figure("The query", ours, places, "Code of the query"),
      figure(what(modality), theirs, places, `Code of ${what(modality).toLowerCase()}`)),
    element("p", { class: "legend", "aria-hidden": "true" }, square("one"), "1", square("zero"), "0",
      places.length ? [square("one differs"), "differs"] : null),
    hit ? element("p", { class: "share" }, why(hit)) : null,
    (hit?.precision ?? null) === null ? null : element("p", { class: "share" }, `Precision: ${PRECISION}.`));
}

const square = (kind) => element("i", { class: `bit ${kind}` });

function figure(caption, code, places, label) {
  return element("figure", {}, element("figcaption", {}, caption), drawing(code, places, label));
}

/** The code that matched: the hit names it; without a hit, the nearest. */
function compared(kept, ours, hit) {
  const named = kept.find(([modality]) => modality === hit?.modality);
  const distance = ([, code]) => differing(ours, code).length;
  return named ?? kept.reduce((best, one) => (distance(one) < distance(best) ? one : best));
}
