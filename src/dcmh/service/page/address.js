// The state of the page in its address: ?text=…, ?similar=ID, or ?code=…&modality=… for a picture that was sent; with
// &radius=, &at_least= and &item=. A picture does not fit into an address, but its code does: links to its results work.

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
  const query = new URLSearchParams();
  if (kind !== "home") query.set(kind, value);
  if (kind === "code" && modality) query.set("modality", modality);
  if (kind === "code" && name) query.set("name", name);
  if (kind !== "home" && radius !== null) query.set("radius", radius);
  if (kind !== "home" && at_least !== null) query.set("at_least", at_least);
  if (item !== null) query.set("item", item);
  return query.toString() ? `?${query}` : "./";
}

/** Equal for states that show the same results. */
export const asks = ({ kind, value, modality, radius = null, at_least = null }) =>
  JSON.stringify([kind, value, kind === "code" ? modality : null, radius, at_least]);
