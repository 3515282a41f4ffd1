// Hits that the user has ticked, and what can be done with them: "More like these", "Not these".

import { byId } from "./element.js";

const bar = byId("selection");
const grid = byId("grid");
const chosen = new Set(); // ids

/** `like(ids)` and `unlike(ids)` are called for the ticked hits. */
export function start({ like, unlike }) {
  const act = (work) => () => {
    const ids = [...chosen];
    clear();
    work(ids);
  };
  byId("like-these").addEventListener("click", act(like));
  byId("unlike-these").addEventListener("click", act(unlike));
  byId("clear-selection").addEventListener("click", () => {
    const [first] = chosen;
    clear();
    grid.querySelector(`a[data-id="${first}"]`)?.focus();
  });
  grid.addEventListener("change", (event) => {
    if (event.target.matches(".tick")) set(event.target.value, event.target.checked);
  });
  grid.addEventListener("keydown", (event) => {
    const tile = event.target.closest("a.tile");
    if (!tile || event.key !== " " || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault(); // the page would scroll
    const tick = tile.parentElement.querySelector(".tick");
    tick.checked = !tick.checked;
    set(tick.value, tick.checked);
  });
}

/** Forget what was ticked: other hits are shown. */
export function clear() {
  chosen.clear();
  for (const tick of grid.querySelectorAll(".tick:checked")) tick.checked = false;
  show();
}

function set(id, isChosen) {
  if (isChosen) chosen.add(id);
  else chosen.delete(id);
  show();
}

function show() {
  bar.hidden = chosen.size === 0;
  grid.classList.toggle("choosing", chosen.size > 0);
  byId("selected").textContent = `${chosen.size} selected`;
}
