// Copies in the collection, in groups: which to keep, and why.

import * as api from "./api.js";
import { href } from "./address.js";
import { breakable, byId, element } from "./element.js";
import { thumbnail } from "./grid.js";

const view = byId("duplicates");
let next = null; // address of the next groups

/** Fill the view. Copies are found anew, since the collection may have changed. */
export async function show(signal) {
  view.replaceChildren(element("h1", {}, "Copies"), element("p", { class: "lead", role: "status" }, "Comparing the pictures…"));
  let answer;
  try {
    answer = await api.duplicates(signal);
  } catch (error) {
    if (!(error instanceof api.Problem)) throw error;
    view.replaceChildren(element("h1", {}, "Copies"), element("p", { class: "lead" }, error.message));
    return;
  }
  const more = element("button", { class: "button more", type: "button", click: () => append(more) }, "More");
  view.replaceChildren(element("h1", { tabindex: "-1" }, "Copies"), element("p", { class: "lead", role: "status" }, summary(answer)),
    element("div", { class: "groups" }), more);
  add(answer, more);
}

async function append(more) {
  more.disabled = true;
  try {
    add(await api.following(next), more);
  } finally {
    more.disabled = false;
  }
}

function add(answer, more) {
  view.querySelector(".groups").append(...answer.groups.map(group));
  next = answer.next;
  more.hidden = next === null;
}

function summary({ total, compared, missing }) {
  const groups = `${total.toLocaleString("en")} ${total === 1 ? "group" : "groups"}`;
  const found = total ? `${groups} of copies among ${compared.toLocaleString("en")} different pictures.` : "No copies were found.";
  const rest = missing
    ? ` ${missing.toLocaleString("en")} pictures were compared for exact copies only. Run once: dcmh duplicates INDEX`
    : "";
  return found + rest;
}

function group({ kind, keep, reason, items }) {
  const tiles = items.map((item) => element("li", {},
    element("a", { class: "tile", href: href({ kind: "duplicates", item: item.id }) },
      element("span", { class: "frame" }, item.thumbnail ? thumbnail(item.id) : item.name),
      element("span", { class: "caption" }, item.id === keep ? element("b", {}, "keep ") : null, breakable(item.name)),
      element("span", { class: "why" }, about(item)))));
  return element("section", { class: "group" },
    element("h2", {}, `${items.length} ${kind === "exact" ? "exact" : "near"} copies`),
    element("p", { class: "hint" }, `Keep the first: ${reason}`),
    element("ul", { class: "grid", role: "list" }, tiles));
}

function about({ width, height, size, distance }) {
  const parts = [
    width && height ? `${width} × ${height}` : "",
    Number.isInteger(size) ? `${Math.max(1, Math.round(size / 1000)).toLocaleString("en")} kB` : "",
    distance ? `differs in ${distance} of 64` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}
