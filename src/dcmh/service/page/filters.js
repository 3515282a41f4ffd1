// Filters: labels, a folder, dates, and conditions on other columns. Those that are set are in the address.

import { FILTERS, isFiltered } from "./address.js";
import * as api from "./api.js";
import { byId, element } from "./element.js";

const panel = byId("filters");
const form = byId("filter-form");
let known = null; // labels and folders of the collection, once the panel was opened
let current = null; // the state in the address

/** `changed(filters)` is called with all filters when one of them changes. */
export function start({ changed }) {
  const apply = (event) => {
    event.preventDefault();
    const value = (name) => form.elements[name].value.trim() || null;
    const several = (name) => [...new Set([...current[name], value(name) ?? ""])].filter(Boolean);
    const label = several("label");
    const where = several("where");
    changed({ label, where, folder: value("folder"), since: value("since"), until: value("until") });
  };
  form.addEventListener("submit", apply);
  form.addEventListener("change", apply);
  byId("clear-filters").addEventListener("click", () => {
    changed({ label: [], where: [], folder: null, since: null, until: null });
    panel.querySelector("summary").focus();
  });
  panel.addEventListener("toggle", () => panel.open && known === null && offer());
}

/** Show what the address says. */
export function show(state) {
  current = state;
  panel.hidden = false;
  for (const name of FILTERS) form.elements[name].value = Array.isArray(state[name]) ? "" : state[name] ?? "";
  byId("clear-filters").hidden = !isFiltered(state);
}

export function hide() {
  panel.hidden = true;
}

async function offer() {
  try {
    known = await api.overview();
  } catch {
    return; // suggestions are optional
  }
  const options = (names) => names.map((name) => element("option", { value: name }));
  byId("known-labels").replaceChildren(...options(known.labels));
  byId("known-folders").replaceChildren(...options(known.folders));
}
