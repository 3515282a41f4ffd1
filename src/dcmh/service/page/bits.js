// Codes drawn as squares. Bit 0 of a code is the lowest bit of its first byte (dcmh.codes).

import { element } from "./element.js";

/** "9f3a…" to an array of true and false, `count` long. */
export function unpack(hex, count) {
  const bytes = (hex.match(/../g) ?? []).map((pair) => parseInt(pair, 16));
  return Array.from({ length: count }, (_, bit) => ((bytes[bit >> 3] >> (bit & 7)) & 1) === 1);
}

/** Which bits differ, counted from 1 as the page shows them. */
export function differing(left, right) {
  return left.map((bit, place) => (bit !== right[place] ? place + 1 : 0)).filter((place) => place > 0);
}

/** A square of squares: full is 1, hollow is 0, those in `marked` are highlighted. */
export function drawing(bits, marked, label) {
  const differ = new Set(marked);
  const squares = bits.map((bit, place) => {
    const kinds = ["bit", bit ? "one" : "zero", differ.has(place + 1) ? "differs" : ""];
    return element("i", { class: kinds.join(" ").trim() });
  });
  const words = `${label}: ${bits.map((bit) => (bit ? "1" : "0")).join("")}`;
  const drawn = element("div", { class: "bits", role: "img", "aria-label": words }, squares);
  drawn.style.setProperty("--columns", bits.length > 64 ? 16 : bits.length > 16 ? 8 : 4);
  return drawn;
}
