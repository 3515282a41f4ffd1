// The view of one item: the photo and what is known about it, then its code next to that of the query.

import { href } from "./address.js";
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

/** Show an item. `context`: bits, query (or null), hit (or null), place, isFirst, isLast, similar (an address), filtered. */
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

/** The photo first: picture, text, labels, words, facts; then why it is a hit, and its code. */
function content(record, context) {
  const title = record.text || record.name;
  const search = (word) => element("li", {}, element("a", { class: "chip", href: href({ kind: "text", value: word }) }, word));
  const chips = (term, words) => (words?.length
    ? element("div", { class: "words" }, element("h3", {}, term),
      element("ul", { class: "chips", role: "list", "aria-label": term }, words.map(search)))
    : null);
  const facts = details(record, context);
  return [
    record.image ? large(record, title) : null,
    element("div", { class: "facts" },
      element("h2", { id: "item-title", tabindex: "-1" }, title),
      element("p", { class: "actions" },
        element("a", { class: "button primary", href: context.similar, "data-similar": true }, "More like this"),
        record.image ? element("a", { class: "button", href: api.imageUrl(record.id), download: record.file ?? "" }, "Download") : null),
      chips("Labels", record.labels),
      chips("Found by", record.found_by?.filter((word) => !record.labels?.includes(word))),
      element("dl", { class: "about" }, facts.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)])),
      context.hit ? element("p", { class: "share" }, why(context.hit)) : null,
      codes(record, context)),
  ];
}

/** [term, value] of what is known about an item besides its texts. */
function details(record, context) {
  const known = [];
  if (record.taken) {
    const [day, time] = record.taken.split("T");
    known.push(["Date", element("time", { datetime: record.taken }, `${day} ${(time ?? "").slice(0, 5)}`)]);
  }
  if (record.folder) {
    known.push(["Folder", element("a", { href: context.filtered({ folder: record.folder }) }, record.folder)]);
  }
  if (record.file) known.push(["File", record.file]);
  const path = [record.folder, record.file].filter(Boolean).join("/");
  if (record.text && record.name !== path) known.push(["Name", element("span", { class: "name" }, record.name)]);
  if (record.image) {
    const bytes = Number.isInteger(record.bytes) ? size(record.bytes) : "";
    known.push(["Size", element("span", { id: "item-size", "data-bytes": bytes }, bytes || "…")]);
  }
  return [...known, ...Object.entries(record.extra ?? {}).map(([term, value]) => [term, String(value)])];
}

function size(bytes) {
  const units = ["bytes", "kB", "MB", "GB"];
  const at = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(bytes, 1)) / 3));
  return `${(bytes / 1000 ** at).toLocaleString("en", { maximumFractionDigits: at > 1 ? 1 : 0 })} ${units[at]}`;
}

function large(record, title) {
  const image = element("img", { class: "large", alt: title, src: api.imageUrl(record.id) });
  let reduced = false; // a format that the browser does not know, such as HEIC or TIFF, is shown as a thumbnail
  image.addEventListener("load", () => {
    image.style.setProperty("--ratio", image.naturalWidth / image.naturalHeight || 1);
    const place = byId("item-size");
    const pixels = reduced ? "" : `${image.naturalWidth} × ${image.naturalHeight} pixels`;
    if (place) place.textContent = [pixels, place.dataset.bytes].filter(Boolean).join(" · ");
  });
  const link = element("a", { class: "open", href: image.src, target: "_blank", rel: "noopener", title: "Open the picture" }, image);
  image.addEventListener("error", () => {
    if (reduced) {
      link.replaceWith(element("p", { class: "large missing" },
        "The picture cannot be shown: its file is missing or cannot be read."));
      return;
    }
    reduced = true;
    image.src = api.thumbnailUrl(record.id, 1024);
  });
  return link;
}

function codes(record, { bits, query, hit }) {
  const kept = Object.entries(record.codes ?? {}).map(([modality, hex]) => [modality, unpack(hex, bits)]);
  if (!kept.length) return null;
  const what = (modality) => (modality === "image" ? "Its picture" : modality === "text" ? "Its words" : modality);
  const disclosed = (summary, ...children) => element("details", { class: "codes" }, element("summary", {}, summary), children);
  if (!query?.code) {
    const drawn = kept.map(([modality, code]) => figure(what(modality), code, [], `Code of ${bits} bits`));
    return disclosed(`Its code of ${bits} bits`, element("div", { class: "pair" }, drawn));
  }
  const ours = unpack(query.code, bits);
  const [modality, theirs] = compared(kept, ours, hit);
  const places = differing(ours, theirs);
  return disclosed(`Its code: ${places.length} of ${bits} bits differ from the query`,
    element("div", { class: "pair" },
      figure("The query", ours, places, "Code of the query"),
      figure(what(modality), theirs, places, `Code of ${what(modality).toLowerCase()}`)),
    element("p", { class: "legend", "aria-hidden": "true" }, square("one"), "1", square("zero"), "0",
      places.length ? [square("one differs"), "differs"] : null),
    places.length ? element("p", { class: "differ" }, `Different: ${places.join(", ")}.`) : null,
    (hit?.precision ?? null) === null ? null : element("p", { class: "meaning" }, `Precision: ${PRECISION}`));
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
