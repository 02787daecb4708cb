/**
 * What the page asks of libraries and their documents (docs/search.md), by the service that it comes from.
 */

/** @import { Api } from "../api.js" */

/**
 * @typedef {object} Library
 * @property {string} id
 * @property {string} name
 * @property {string} path of the folder that it stands in, "" for none
 * @property {string} full_path
 * @property {string} owner_id
 * @property {boolean} everyone whether everybody reads it
 * @property {number} document_count
 * @property {string} updated_at
 *
 * @typedef {object} LibraryDocument
 * @property {string} document_uid
 * @property {string} owner_id
 * @property {string} title
 * @property {string} file_name
 * @property {string} file_path
 * @property {string} mime_type
 * @property {number} size_bytes
 * @property {number} version
 * @property {boolean} retrievable
 * @property {"processing"|"ready"|"failed"} status
 * @property {number} chunk_count
 * @property {string} ingested_at
 * @property {string} updated_at
 * @property {{code: string, message: string}|null} error
 * @property {Record<string, {cut?: string}>|null} [stages]
 * @property {string[]} tag_ids
 *
 * @typedef {{everyone: boolean, users: string[], groups: string[]}} Access
 * @typedef {"hybrid"|"semantic"|"strict"} Policy
 *
 * @typedef {object} Hit
 * @property {string} uid
 * @property {string} title
 * @property {string} content
 * @property {number} score
 * @property {number|null} [rank]
 * @property {string|null} [section]
 * @property {number|null} [page]
 * @property {string|null} [viewer_fragment]
 *
 * @typedef {object} Step a line of an upload's answer
 * @property {string} step parse, embed, index; finished at the file's end; done at the upload's
 * @property {string} [status]
 * @property {string} [code] why a file was refused
 * @property {string} [error] the same as a sentence
 * @property {string} [cut] what of the file was not read
 * @property {number} [done] of its passages
 * @property {number} [of]
 */

/** Documents that are asked for at a time. */
export const PAGE = 50;
/** Documents that the service tells of at once. */
const MOST_AT_ONCE = 1000;
const FILE_DEADLINE_MS = 600_000;

/** Libraries as the person may have them. Each call rejects with ApiError. */
export class LibraryApi {
  #api;

  /** @param {Api} api */
  constructor(api) {
    this.#api = api;
  }

  /** By path and name. @returns {Promise<Library[]>} */
  libraries() {
    return this.#api.call("GET", "knowledge/tags");
  }

  /** @param {string} name @returns {Promise<Library>} */
  create(name) {
    return this.#api.call("POST", "knowledge/tags", { name });
  }

  /** @param {string} id @param {string} name @returns {Promise<Library>} */
  rename(id, name) {
    return this.#api.call("PUT", `knowledge/tags/${encodeURIComponent(id)}`, { name });
  }

  /** Its documents that are in no other library go with it. @param {string} id */
  remove(id) {
    return this.#api.call("DELETE", `knowledge/tags/${encodeURIComponent(id)}`);
  }

  /** Who reads a library beside its owner, who alone may ask. @param {string} id @returns {Promise<Access>} */
  access(id) {
    return this.#api.call("GET", `knowledge/tags/${encodeURIComponent(id)}/access`);
  }

  /** @param {string} id @param {Access} access @returns {Promise<Access>} */
  share(id, access) {
    return this.#api.call("PUT", `knowledge/tags/${encodeURIComponent(id)}/access`, access);
  }

  /**
   * Documents, newest first; of a library, of a state, with a part of their name.
   * @param {{libraryId?: string|null, status?: string, name?: string, limit?: number}} wanted
   * @returns {Promise<{total: number, documents: LibraryDocument[]}>}
   */
  async documents({ libraryId = null, status = "", name = "", limit = PAGE } = {}) {
    const filters = {
      ...(libraryId === null ? {} : { tag_ids: [libraryId] }),
      ...(status === "" ? {} : { status }),
      ...(name === "" ? {} : { name }),
    };
    /** @type {LibraryDocument[]} */
    const documents = [];
    for (;;) {
      const window = { offset: documents.length, limit: Math.min(MOST_AT_ONCE, limit - documents.length) };
      const found = await this.#api.call("POST", "knowledge/documents/browse", { filters, ...window });
      documents.push(...found.documents);
      if (found.documents.length < window.limit || documents.length >= limit) return { total: found.total, documents };
    }
  }

  /** Puts a document into these libraries and no others. @param {string} uid @param {string[]} libraryIds */
  place(uid, libraryIds) {
    return this.#api.call("PUT", `knowledge/documents/${encodeURIComponent(uid)}/tags`, { tag_ids: libraryIds });
  }

  /** @param {string} uid */
  removeDocument(uid) {
    return this.#api.call("DELETE", `knowledge/documents/${encodeURIComponent(uid)}`);
  }

  /** The file as it was uploaded. @param {string} uid @returns {Promise<Blob>} */
  async file(uid) {
    const { blob } = await this.#api.download(`knowledge/raw_content/${encodeURIComponent(uid)}`, FILE_DEADLINE_MS);
    return blob;
  }

  /**
   * Passages of a library that fit a question, best first.
   * @param {string} libraryId
   * @param {string} question
   * @param {Policy} policy
   * @param {number} count
   * @returns {Promise<Hit[]>}
   */
  search(libraryId, question, policy, count) {
    return this.#api.call("POST", "knowledge/vector/search", {
      question,
      top_k: count,
      search_policy: policy,
      document_library_tags_ids: [libraryId],
      include_session_scope: false,
    });
  }

  /**
   * Sends one file into libraries.
   * @param {Blob} file
   * @param {string} name with the folders that it is in
   * @param {string[]} libraryIds
   * @param {{sent: (bytes: number, of: number) => void, step: (step: Step) => void, signal: AbortSignal}} told
   */
  upload(file, name, libraryIds, { sent, step, signal }) {
    const form = new FormData();
    form.append("metadata_json", JSON.stringify({ tags: libraryIds }));
    form.append("files", file, name);
    const line = (/** @type {string} */ text) => step(JSON.parse(text));
    return this.#api.transfer("knowledge/upload-process-documents", form, { sent, line, signal });
  }

  /**
   * Has the file that is kept of a document read again.
   * @param {string} uid
   * @param {{step: (step: Step) => void, signal: AbortSignal}} told
   */
  readAgain(uid, { step, signal }) {
    const line = (/** @type {string} */ text) => step(JSON.parse(text));
    const path = `knowledge/documents/${encodeURIComponent(uid)}/ingest`;
    return this.#api.transfer(path, null, { sent: () => {}, line, signal });
  }

  /** Whether there are users here: without, there is nobody to share with. */
  async tellsPeopleApart() {
    const { user_auth: auth } = await this.#api.settings();
    return auth.enabled;
  }
}
