/** Attaching files to a conversation, and removing them. */

/**
 * @import { Attachment } from "./api.js"
 * @import { App } from "./app.js"
 * @import { Upload } from "./attachments.js"
 * @import { Picture } from "./pictures.js"
 * @import { Turn } from "./protocol.js"
 * @import { Conversation } from "./state.js"
 */
import { ApiError } from "./api.js";
import { isImage } from "./attachments.js";
import { catalogue } from "./i18n.js";
import { errorText } from "./texts.js";

/** As many as the service takes of one person at once. */
const AT_ONCE = 2;

const t = catalogue({
  en: { attached: "{name} is attached.", removed: "{name} is removed.", imagesOnly: "This agent takes images only" },
  fr: { attached: "{name} est joint.", removed: "{name} est retiré.", imagesOnly: "Cet agent n'accepte que des images" },
});

/** The files of the conversation on the screen. */
export class Uploads {
  #app;
  /** @type {number|null} */
  #mostMb = null;
  #takesFiles = false;
  /** @type {Map<string, (() => void)[]>} by session: who waits until its files have come */
  #waiting = new Map();

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
  }

  showAttachments() {
    const agent = this.#app.agents.agents.find(({ id }) => id === this.#app.agents.chosenAgentId);
    const taken = { files: agent?.chat_options?.attach_files === true, images: this.#app.agents.seesImages };
    this.#takesFiles = taken.files;
    if (taken.files || taken.images) this.#learnLimit();
    const { current, currentSession } = this.#app.state;
    const attached = currentSession?.attachments ?? [];
    this.#app.view.attachments.show({ taken, attached, uploads: current?.uploads ?? [], mostMb: this.#mostMb });
    if (current !== undefined) this.#markTurns(current.turns, attached);
  }

  /** How large a file may be is a hint: without it the service still says so. */
  async #learnLimit() {
    if (this.#mostMb !== null) return;
    try {
      this.#mostMb = (await this.#app.api.limits()).max_attached_file_size_mb;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return;
    }
    this.showAttachments();
  }

  /**
   * A file belongs to the first question that was asked after it came.
   * @param {Turn[]} turns
   * @param {Attachment[]} attached
   */
  #markTurns(turns, attached) {
    let since = "";
    for (const turn of turns) {
      const until = turn.timestamp ?? "9";
      const files = attached.filter((one) => !isImage(one) && isBetween(one, since, until));
      const names = files.map(({ name }) => name);
      if (names.join("/") !== turn.files.join("/")) {
        turn.files = names;
        this.#app.view.updateTurn(turn);
      }
      since = until;
    }
  }

  /**
   * The images that no question of the conversation shows yet: its next one does.
   * @param {Conversation} conversation
   * @returns {Picture[]}
   */
  unasked({ id, known }) {
    const asked = new Set(known.filter(({ status }) => status !== "refused").flatMap(({ images }) => images.map((one) => one.id)));
    // What came before the oldest question that is known was shown by one before it.
    const since = known[0]?.timestamp ?? "";
    const images = (this.#app.state.sessions.get(id)?.attachments ?? []).filter(isImage);
    return images.filter((one) => !asked.has(one.id) && isBetween(one, since, "9")).map(({ id: of, name }) => ({ id: of, name }));
  }

  /**
   * The images of a question that are still attached: it may be asked again with these.
   * @param {Turn} turn
   */
  stillThere({ sessionId, images }) {
    const attached = new Set((this.#app.state.sessions.get(sessionId)?.attachments ?? []).map(({ id }) => id));
    return images.filter(({ id }) => attached.has(id));
  }

  /**
   * The bytes of an image, or why there are none.
   * @param {Picture} picture
   * @returns {ReturnType<import("./pictures.js").Fetch>}
   */
  async picture({ id }) {
    try {
      return await this.#app.api.picture(id);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return error.code === "attachment_not_found" ? "gone" : "unread";
    }
  }

  /**
   * Attaches files, a few at once; what cannot be attached says why, and the others go on.
   * @param {File[]} files
   */
  async attach(files) {
    const agentId = this.#app.agents.chosenAgentId;
    const id = this.#app.state.currentId ?? (agentId === null ? null : await this.#app.asking.session(agentId));
    if (id === null) return;
    this.#app.list.showSessions();
    const conversation = this.#app.state.conversationOf(id);
    const names = new Set(this.#app.state.sessions.get(id)?.attachments?.map(({ name }) => name));
    for (const { file: { name } } of conversation.uploads) names.add(name);
    for (const given of files) {
      const file = named(given, names);
      names.add(file.name);
      /** @type {Upload} */
      const upload = { file, state: "waiting", sent: 0, failure: null, ending: new AbortController() };
      if (!this.#takesFiles && !file.type.startsWith("image/")) {
        Object.assign(upload, { state: "failed", failure: { title: t("imagesOnly"), message: "", retryable: false } });
      }
      conversation.uploads.push(upload);
    }
    this.showAttachments();
    this.#sendNext(conversation);
  }

  /** @param {Upload} upload */
  retry(upload) {
    const conversation = this.#app.state.current;
    if (conversation === undefined) return;
    Object.assign(upload, { state: "waiting", sent: 0, failure: null, ending: new AbortController() });
    this.showAttachments();
    this.#sendNext(conversation);
  }

  /** @param {Upload} upload */
  drop(upload) {
    const conversation = this.#app.state.current;
    if (conversation === undefined) return;
    upload.ending.abort();
    this.#take(conversation, upload);
    // The button is gone, and with it the place of the keyboard.
    this.#app.view.focusComposer();
  }

  /**
   * Settled once no file of the session is on its way any more.
   * @param {string} id
   * @returns {Promise<void>}
   */
  settled(id) {
    if (!this.#app.state.conversationOf(id).uploads.some(isOnItsWay)) return Promise.resolve();
    return new Promise((resolve) => {
      this.#waiting.set(id, [...(this.#waiting.get(id) ?? []), resolve]);
    });
  }

  /** @param {Conversation} conversation */
  #sendNext(conversation) {
    const running = conversation.uploads.filter(({ state }) => state === "sending" || state === "reading").length;
    const waiting = conversation.uploads.filter(({ state }) => state === "waiting");
    for (const upload of waiting.slice(0, AT_ONCE - running)) this.#send(conversation, upload);
    if (conversation.uploads.some(isOnItsWay)) return;
    for (const resolve of this.#waiting.get(conversation.id) ?? []) resolve();
    this.#waiting.delete(conversation.id);
  }

  /** @param {Conversation} conversation @param {Upload} upload */
  async #send(conversation, upload) {
    upload.state = "sending";
    const { file, ending } = upload;
    const { signal } = ending;
    /** @param {number} bytes @param {number} of */
    const sent = (bytes, of) => {
      upload.sent = of === 0 ? 1 : bytes / of;
      if (upload.sent === 1) upload.state = "reading";
      this.#app.view.attachments.update(upload);
    };
    try {
      const { attachment_id: id, filename: name, ...more } = await this.#app.api.upload(conversation.id, file, { sent, signal });
      const { mime, size_bytes, attached_at } = more;
      this.#setAttachments(conversation.id, (now) => [...now, { id, name, mime, size_bytes, attached_at }]);
      this.#app.view.announce(t("attached", { name }));
      this.#take(conversation, upload);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      upload.state = "failed";
      upload.failure = { ...errorText(error.failure), retryable: error.retryable };
      this.#app.view.attachments.update(upload);
      this.#sendNext(conversation);
    }
  }

  /** @param {Conversation} conversation @param {Upload} upload */
  #take(conversation, upload) {
    conversation.uploads = conversation.uploads.filter((other) => other !== upload);
    this.showAttachments();
    this.#sendNext(conversation);
  }

  /** @param {Attachment} attachment */
  async detach({ id: attachmentId, name }) {
    const id = this.#app.state.currentId;
    if (id === null) return;
    await this.#app.guarded(async () => {
      await this.#app.api.removeAttachment(id, attachmentId);
      this.#setAttachments(id, (now) => now.filter((one) => one.id !== attachmentId));
      this.#app.view.announce(t("removed", { name }));
    });
    // The button is gone, and with it the place of the keyboard.
    this.#app.view.focusComposer();
  }

  /**
   * The list that was read meanwhile may hold a new one already.
   * @param {string} id
   * @param {(now: Attachment[]) => Attachment[]} change
   */
  #setAttachments(id, change) {
    const session = this.#app.state.sessions.get(id);
    if (session === undefined) return;
    const byId = new Map(change(session.attachments ?? []).map((one) => [one.id, one]));
    this.#app.state.sessions.set(id, { ...session, attachments: [...byId.values()] });
    this.showAttachments();
  }
}

/**
 * An image under a name that none of `names` is: each that is pasted is called alike.
 * @param {File} file
 * @param {Set<string>} names
 */
function named(file, names) {
  if (!file.type.startsWith("image/") || !names.has(file.name)) return file;
  const [, stem, ending] = /^(.*?)(\.\w+)?$/s.exec(file.name) ?? [];
  let number = 2;
  while (names.has(`${stem} ${number}${ending ?? ""}`)) number += 1;
  return new File([file], `${stem} ${number}${ending ?? ""}`, { type: file.type });
}

/** @param {Attachment} attachment @param {string} since @param {string} until */
function isBetween({ attached_at: at = "" }, since, until) {
  return at > since && at <= until;
}

/** @param {Upload} upload */
function isOnItsWay({ state }) {
  return state !== "failed";
}
