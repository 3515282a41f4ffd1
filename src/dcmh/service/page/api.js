// Requests to the service (docs/service.md). Addresses are relative to the page, so that it works wherever it is mounted.

/** The service is unreachable or busy: try again. */
export class Unavailable extends Error {
  constructor(sentence, seconds = 0) {
    super(sentence);
    this.seconds = seconds;
  }
}

/** The service refused: a problem document. */
export class Problem extends Error {
  constructor(status, record) {
    super(record.title || `The server answered with status ${status}.`);
    this.status = status;
    this.type = record.type || "";
    this.hint = record.hint || "";
    this.nearest = Array.isArray(record.nearest) ? record.nearest : null; // null: no vocabulary limits the query
  }
}

const query = (given) => new URLSearchParams(given).toString();
const of = (id) => `api/items/${encodeURIComponent(id)}`;

export const info = () => ask("api/info");
export const overview = () => ask("api/overview?limit=100");
export const words = (prefix, limit, signal) => ask(`api/words?${query({ prefix, limit })}`, { signal });
export const duplicates = (signal) => ask("api/duplicates?k=20", { signal });
export const item = (id, signal) => ask(of(id), { signal });
export const imageUrl = (id) => `${of(id)}/image`;
export const thumbnailUrl = (id, size) => `${of(id)}/thumbnail?size=${size}`;

// `page`: which hits, as pairs such as ["k", 60], ["label", "dog"]
export const search = (page, signal) => ask(`api/search?${query(page)}`, { signal });
export const similar = (id, page, signal) => ask(`${of(id)}/similar?${query(page)}`, { signal });

export function searchPicture(file, page, signal) {
  const body = new FormData();
  body.append("image", file, file.name || "picture");
  return ask(`api/search?${query(page)}`, { method: "POST", body, signal });
}

/** The page of hits that an answer calls `next`. */
export function following(next, signal) {
  const at = new URL(next, location.href);
  return ask(`api/${at.pathname.split("/api/").pop()}${at.search}`, { signal });
}

export async function isHealthy() {
  try {
    const answer = await fetch("api/health", { cache: "no-store", signal: AbortSignal.timeout(4000) });
    return answer.ok;
  } catch {
    return false;
  }
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { headers: { Accept: "application/json" }, ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unavailable("Server not reachable, retrying");
  }
  if ([429, 503].includes(answer.status)) {
    throw new Unavailable("Server busy, retrying", Number(answer.headers.get("Retry-After")) || 1);
  }
  if ([502, 504].includes(answer.status)) throw new Unavailable("Server not reachable, retrying");
  const record = await answer.json().catch(() => null);
  if (answer.ok && record !== null) return record;
  throw new Problem(answer.status, record ?? {});
}
