// The radius: a slider from 0 to half the bits, and the precision measured there.

import { byId, shape } from "./element.js";

const slider = byId("slider");
const value = byId("radius-value");
const precision = byId("precision");
const any = byId("any");
const curve = byId("curve");
let bits = 64;
let measured = null; // precision by radius for the kind of query on screen; null if it was not measured

/** `moved(radius)` is called at each step, `settled(radius)` once the slider is released; null means any distance. */
export function start({ moved, settled }) {
  slider.addEventListener("input", () => {
    show(Number(slider.value));
    moved(Number(slider.value));
  });
  slider.addEventListener("change", () => settled(Number(slider.value)));
  any.addEventListener("click", () => {
    show(null);
    moved(null);
    settled(null);
    slider.focus();
  });
}

/** Codes have `count` bits, and `by_radius` is the measured curve. */
export function prepare(count, by_radius) {
  bits = count;
  measured = by_radius;
  slider.max = Math.floor(bits / 2);
  draw();
}

export function show(radius) {
  const most = Math.floor(bits / 2);
  slider.value = radius === null ? most : Math.min(radius, most);
  slider.style.setProperty("--fill", `${(100 * slider.value) / most}%`);
  any.hidden = radius === null;
  value.textContent = radius ?? "any distance";
  slider.setAttribute("aria-valuetext", radius === null ? "any distance" : `${radius} of ${bits} bits`);
  precision.textContent = measuredAt(radius);
  [...curve.children].forEach((bar, at) => bar.classList.toggle("within", radius === null || at <= radius));
}

function measuredAt(radius) {
  if (radius === null) return "";
  const share = measured?.get(radius);
  return share === undefined ? "precision not measured" : `measured precision ${share.toFixed(2)}`;
}

function draw() {
  const most = Math.floor(bits / 2);
  curve.setAttribute("viewBox", `0.5 0 ${most} 1`); // the first and last bars are above the ends of the slider
  const bars = Array.from({ length: most + 1 }, (_, at) => {
    const height = Math.max(measured?.get(at) ?? 0, 0.04);
    return shape("rect", { x: at + 0.14, y: 1 - height, width: 0.72, height });
  });
  curve.replaceChildren(...(measured === null ? [] : bars));
}
