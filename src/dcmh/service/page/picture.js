// A picture to search with: chosen, pasted, or dropped anywhere.

import { byId } from "./element.js";

/** `search(file)` gets the picture; `refuse(message, hint)` is called if it cannot be used. */
export function pictures({ search, refuse, limit }) {
  const input = byId("file");
  const veil = byId("drop");
  let inside = 0; // dragenter and dragleave fire for each element that is crossed

  function take(files) {
    const file = [...files].find(({ type }) => type.startsWith("image/"));
    if (!file) {
      if (files.length) refuse(`${files[0].name || "That"} is not a picture.`, "Use a JPEG, PNG or WebP file.");
      return;
    }
    const most = limit();
    if (file.size > most) {
      const [size, allowed] = [file.size, most].map((bytes) => `${(bytes / 1e6).toFixed(1)} MB`);
      const message = `${file.name || "The picture"} has ${size}; the server accepts up to ${allowed}.`;
      refuse(message, "Reduce it: 1,000 pixels on a side are plenty.");
      return;
    }
    search(file);
  }

  const show = (on) => {
    inside = on ? inside : 0;
    veil.classList.toggle("over", on);
  };
  const holdsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

  byId("choose").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    take(input.files);
    input.value = ""; // the same file can be chosen again
  });
  addEventListener("dragenter", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    inside += 1;
    show(true);
  });
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
  });
  addEventListener("dragleave", (event) => {
    if (!holdsFiles(event)) return;
    inside -= 1;
    if (inside <= 0) show(false);
  });
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    show(false);
    take(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return; // words are pasted into the box
    event.preventDefault();
    take(files);
  });
}
