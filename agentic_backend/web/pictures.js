/** Images of questions: fetched as they come into view, with the person's token, and made larger at a press. */

import { el } from "./dom.js";
import { catalogue } from "./i18n.js";

const t = catalogue({
  en: { image: "Image: {name}", gone: "{name} (no longer there)", unread: "{name}: try again" },
  fr: { image: "Image : {name}", gone: "{name} (n'est plus là)", unread: "{name} : réessayer" },
});

/**
 * @typedef {{id: string, name: string}} Picture an attachment that is an image
 * @typedef {(picture: Picture) => Promise<Blob|"gone"|"unread">} Fetch "unread" where another time may give it
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
 * A button with the image, which it shows in its full size, and small again; or with why it is not shown.
 * @param {Picture} picture
 * @param {Fetch} fetch
 */
export function pictureButton(picture, fetch) {
  const label = t("image", { name: picture.name });
  const attributes = { type: "button", class: "picture", "aria-label": label, title: picture.name, "aria-expanded": "false" };
  const node = el("button", attributes);
  const fill = async () => {
    const found = await fetch(picture);
    node.disabled = found === "gone";
    const text = typeof found === "string" ? t(found, { name: picture.name }) : null;
    node.setAttribute("aria-label", text ?? label);
    node.replaceChildren(text ?? el("img", { alt: "", src: await dataUrl(/** @type {Blob} */ (found)) }));
  };
  node.addEventListener("click", () => {
    if (node.querySelector("img") === null) fill();
    else node.setAttribute("aria-expanded", String(node.getAttribute("aria-expanded") !== "true"));
  });
  unseen.set(node, fill);
  seen.observe(node);
  return node;
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
