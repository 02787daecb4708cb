/** Images of questions: fetched as they come into view, with the person's token, and made larger at a press. */

import { el } from "./dom.js";
import { catalogue } from "./i18n.js";

const t = catalogue({
  en: { image: "Image: {name}", gone: "{name} (no longer there)" },
  fr: { image: "Image : {name}", gone: "{name} (n'est plus là)" },
});

/**
 * @typedef {{id: string, name: string}} Picture an attachment that is an image
 * @typedef {(picture: Picture) => Promise<Blob|null>} Fetch null where it is not there any more, or not to be had
 */

/** @type {WeakMap<Element, () => void>} */
const unseen = new WeakMap();

const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      unseen.get(target)?.();
    }
  },
  { rootMargin: "50%" },
);

/**
 * A button with the image, which it shows in its full size, and small again.
 * @param {Picture} picture
 * @param {Fetch} fetch
 */
export function pictureButton(picture, fetch) {
  const name = t("image", { name: picture.name });
  const shown = el("img", { alt: "" });
  const attributes = { type: "button", class: "picture", "aria-label": name, title: picture.name, "aria-expanded": "false" };
  const node = el("button", attributes, shown);
  node.addEventListener("click", () => {
    node.setAttribute("aria-expanded", String(node.getAttribute("aria-expanded") !== "true"));
  });
  unseen.set(node, () => fill(picture, fetch, shown, node));
  seen.observe(node);
  return node;
}

/** @param {Picture} picture @param {Fetch} fetch @param {HTMLImageElement} image @param {HTMLElement} node */
async function fill(picture, fetch, image, node) {
  const blob = await fetch(picture);
  if (blob === null) node.replaceWith(el("span", { class: "hint", dir: "auto" }, t("gone", { name: picture.name })));
  else image.src = await dataUrl(blob);
}

/**
 * The policy of the page lets images come from its own service, whose address takes no token, and from such URLs.
 * @param {Blob} blob
 * @returns {Promise<string>}
 */
function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(String(reader.result)));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(blob);
  });
}
