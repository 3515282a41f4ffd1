// Creates elements. Text always becomes a text node: the content of a collection is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** element("p", { class: "end", hidden: true }, "words", otherElement); functions become listeners. */
export function element(name, properties = {}, ...children) {
  return build(document.createElement(name), properties, children);
}

export function shape(name, properties = {}, ...children) {
  return build(document.createElementNS(SVG, name), properties, children);
}

export function byId(id) {
  return document.getElementById(id);
}

/** The name of a file with its folders, which breaks after slashes rather than within a name. */
export function breakable(path) {
  const [first, ...others] = path.split("/");
  return [first, ...others.flatMap((part) => ["/", element("wbr"), part])];
}

function build(made, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(key, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}
