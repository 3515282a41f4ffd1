// What is on screen, as the address says it: ?text=…, ?similar=ID, or ?code=…&modality=… for a picture that was sent;
// with &radius=, &at_least= and &item=. A picture is too large for an address, but its code is not: links to its results work.

/** {kind, value, modality, name, radius, at_least, item}; kind is "home", "text", "similar" or "code". */
export function read(url = location) {
  const given = new URLSearchParams(url.search);
  const radius = /^\d{1,4}$/.test(given.get("radius") ?? "") ? Number(given.get("radius")) : null;
  const at_least = /^(0(\.\d{1,4})?|1)$/.test(given.get("at_least") ?? "") ? Number(given.get("at_least")) : null;
  const state = {
    radius, at_least, item: given.get("item") || null, modality: given.get("modality"), name: given.get("name"),
  };
  for (const kind of ["text", "similar", "code"]) {
    const value = (given.get(kind) ?? "").trim();
    if (value) return { ...state, kind, value };
  }
  return { ...state, kind: "home", value: "", radius: null, at_least: null };
}

export function href({ kind, value, modality, name, radius = null, at_least = null, item = null }) {
  const said = new URLSearchParams();
  if (kind !== "home") said.set(kind, value);
  if (kind === "code" && modality) said.set("modality", modality);
  if (kind === "code" && name) said.set("name", name);
  if (kind !== "home" && radius !== null) said.set("radius", radius);
  if (kind !== "home" && at_least !== null) said.set("at_least", at_least);
  if (item !== null) said.set("item", item);
  return said.toString() ? `?${said}` : "./";
}

/** Equal for states that show the same results. */
export const asks = ({ kind, value, modality, radius = null, at_least = null }) =>
  JSON.stringify([kind, value, kind === "code" ? modality : null, radius, at_least]);
