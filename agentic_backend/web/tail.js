/** Follows the end of what is written into a box while that end is in sight, and leaves the reader alone otherwise. */
export class Tail {
  #box;
  #nearPx;
  #following = true;
  /** Where it was last known to be: the event of a scroll comes with the next frame, and text may come before it. */
  #top = 0;

  /**
   * @param {HTMLElement} box that scrolls
   * @param {number} nearPx how far from the end its reader may be who still follows it
   */
  constructor(box, nearPx) {
    this.#box = box;
    this.#nearPx = nearPx;
    box.addEventListener("scroll", () => {
      this.#following = this.#isNear();
      this.#top = box.scrollTop;
    });
  }

  get following() {
    return this.#following && (this.#box.scrollTop >= this.#top || this.#isNear());
  }

  toEnd() {
    this.#following = true;
    this.#box.scrollTop = this.#box.scrollHeight;
    this.#top = this.#box.scrollTop;
  }

  /** Until its reader comes back to the end. */
  leave() {
    this.#following = false;
  }

  #isNear() {
    const { scrollHeight, scrollTop, clientHeight } = this.#box;
    return scrollHeight - scrollTop - clientHeight < this.#nearPx;
  }
}
