/** Attaching files to a conversation, and removing them. */

/**
 * @import { Attachment } from "./api.js"
 * @import { App } from "./app.js"
 */
import { ApiError } from "./api.js";
import { errorText } from "./texts.js";

/** The files of the conversation on the screen. */
export class Uploads {
  #app;

  /** @param {App} app */
  constructor(app) {
    this.#app = app;
  }

  showAttachments() {
    const agent = this.#app.agents.agents.find(({ id }) => id === this.#app.agents.chosenAgentId);
    this.#app.view.showAttachments({
      offered: agent?.chat_options?.attach_files === true,
      attached: this.#app.state.currentSession?.attachments ?? [],
      reading: this.#app.state.current?.reading ?? [],
    });
  }

  /**
   * Attaches files one after the other; what cannot be attached is said, and the others go on.
   * @param {File[]} files
   */
  async attach(files) {
    if (this.#app.asking.creating) return;
    const agentId = this.#app.agents.chosenAgentId;
    const id = this.#app.state.currentId ?? (agentId === null ? null : await this.#app.asking.createSession(agentId));
    if (id === null) return;
    this.#app.list.showSessions();
    this.#app.view.clearNotice();
    const conversation = this.#app.state.conversationOf(id);
    conversation.reading.push(...files.map(({ name }) => name));
    this.showAttachments();
    for (const file of files) {
      try {
        const { attachment_id: attachmentId, filename } = await this.#app.api.upload(id, file);
        this.#setAttachments(id, (now) => [...now, { id: attachmentId, name: filename }]);
        this.#app.view.announce(`${filename} is attached.`);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        const { title, message } = errorText(error.failure);
        this.#app.view.notify({ title, message: `${file.name}: ${message}` });
      }
      conversation.reading.splice(conversation.reading.indexOf(file.name), 1);
      this.showAttachments();
    }
  }

  /** @param {Attachment} attachment */
  async detach({ id: attachmentId, name }) {
    const id = this.#app.state.currentId;
    if (id === null) return;
    await this.#app.guarded(async () => {
      await this.#app.api.removeAttachment(id, attachmentId);
      this.#setAttachments(id, (now) => now.filter((one) => one.id !== attachmentId));
      this.#app.view.announce(`${name} is removed.`);
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
