// The filter for a minimum precision: off by default, and hidden if the precision was not measured.

import { byId } from "./element.js";
import { PRECISION } from "./grid.js";

const filter = byId("sure");
const choice = byId("at-least");
filter.title = `Precision: ${PRECISION}`;

/** `changed(least)` is called with the choice; null is off. */
export function start(changed) {
  choice.addEventListener("change", () => changed(choice.value === "" ? null : Number(choice.value)));
}

export function show(least, isMeasured) {
  filter.hidden = !isMeasured;
  const value = least === null ? "" : String(least);
  if (![...choice.options].some((option) => option.value === value)) choice.add(new Option(value, value)); // from the address
  choice.value = value;
}
