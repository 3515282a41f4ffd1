// The state of the page in its address: ?text=…, ?like=ID&unlike=ID, ?similar=ID, or ?code=…&modality=… for a picture that was
// sent; with filters, &radius=, &at_least= and &item=. ?view=duplicates shows copies. A picture does not fit into an address, but
// its code does: links to its results work.

export const FILTERS = ["label", "folder", "since", "until", "where"];
const SEVERAL = ["like", "unlike", "label", "where"]; // parameters that may be repeated
const MODIFIERS = ["radius", "at_least", "like", "unlike", ...FILTERS];
const NOTHING = Object.fromEntries(MODIFIERS.map((name) => [name, SEVERAL.includes(name) ? [] : null]));

/** {kind, value, modality, name, item, radius, at_least, like, unlike, label, folder, since, until, where}. */
export function read(url = location) {
  const given = new URLSearchParams(url.search);
  const number = (name, form) => (form.test(given.get(name) ?? "") ? Number(given.get(name)) : null);
  const some = (name) => given.getAll(name).map((value) => value.trim()).filter(Boolean);
  const state = {
    item: given.get("item") || null,
    modality: given.get("modality"),
    name: given.get("name"),
    radius: number("radius", /^\d{1,4}$/),
    at_least: number("at_least", /^(0(\.\d{1,4})?|1)$/),
    like: some("like").filter((id) => /^\d{1,18}$/.test(id)),
    unlike: some("unlike").filter((id) => /^\d{1,18}$/.test(id)),
    label: some("label"),
    folder: some("folder")[0] ?? null,
    since: some("since")[0] ?? null,
    until: some("until")[0] ?? null,
    where: some("where"),
  };
  for (const kind of ["text", "similar", "code"]) {
    const value = (given.get(kind) ?? "").trim();
    if (value) return { ...state, kind, value };
  }
  if (given.get("view") === "duplicates") return { ...state, ...NOTHING, kind: "duplicates", value: "" };
  if (state.like.length) return { ...state, kind: "examples", value: "" };
  return { ...state, ...NOTHING, kind: "home", value: "" };
}

export function href(state) {
  const { kind, value, modality, name, item = null } = state;
  const query = new URLSearchParams();
  if (kind === "duplicates") query.set("view", kind);
  else if (!["home", "examples"].includes(kind)) query.set(kind, value);
  if (kind === "code" && modality) query.set("modality", modality);
  if (kind === "code" && name) query.set("name", name);
  if (!["home", "duplicates"].includes(kind)) for (const [key, one] of modifiers(state)) query.append(key, one);
  if (item !== null) query.set("item", item);
  return query.toString() ? `?${query}` : "./";
}

/** Radius, precision, examples and filters that are set: [name, value], as the API takes them. */
export function modifiers(state) {
  return MODIFIERS.flatMap((name) => [state[name] ?? []].flat().map((value) => [name, value]));
}

export const isFiltered = (state) => FILTERS.some((name) => [state[name] ?? []].flat().length > 0);

/** Equal for states that show the same results. */
export const asks = (state) =>
  JSON.stringify([state.kind, state.value, state.kind === "code" ? state.modality : null, modifiers(state)]);

/** The state without one part: `without(state, "label", "dog")`. */
export function without(state, name, value) {
  const left = SEVERAL.includes(name) ? state[name].filter((one) => one !== value) : null;
  const changed = { ...state, [name]: left, item: null };
  if (changed.kind === "examples" && !changed.like.length) return { ...changed, ...NOTHING, kind: "home" };
  return changed;
}
