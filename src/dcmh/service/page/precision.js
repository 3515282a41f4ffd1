// Only hits whose precision is at least so much: off unless somebody chooses, and there only where it was measured.

import { byId } from "./element.js";
import { PRECISION } from "./grid.js";

const place = byId("sure");
const choice = byId("at-least");
place.title = `Precision: ${PRECISION}`;

/** `changed(least)` is called with the choice; null is off. */
export function start(changed) {
  choice.addEventListener("change", () => changed(choice.value === "" ? null : Number(choice.value)));
}

export function show(least, isMeasured) {
  place.hidden = !isMeasured;
  const value = least === null ? "" : String(least);
  if (![...choice.options].some((option) => option.value === value)) choice.add(new Option(value, value)); // of an address
  choice.value = value;
}
