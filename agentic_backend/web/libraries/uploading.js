/** Files on their way into libraries: three at a time, the others wait. They go on while the person is elsewhere. */

/** @import { LibraryApi, LibraryDocument, Step } from "./api.js" */
import { ApiError } from "../api.js";

/**
 * @typedef {{code: string, message?: string|null}} Failure
 * @typedef {"waiting"|"sending"|"received"|"parse"|"embed"|"index"|"success"|"unchanged"|"refused"|"aborted"|"lost"}
 *   UploadState
 *
 * @typedef {{file: Blob, name: string}} Named a file under the name that it gets, with its folders
 * @typedef {object} Told
 * @property {(bytes: number, of: number) => void} sent
 * @property {(step: Step) => void} step
 * @property {AbortSignal} signal
 */

export const AT_ONCE = 3;
/** Files that may be added at a time: each is a row, and a request. */
export const MOST_FILES = 2000;
/** Files of a drop that are looked at, hidden ones and those beyond the most included. */
const MOST_ENTRIES = 20_000;
const ENDED = new Set(["success", "unchanged", "refused", "aborted", "lost"]);

/** One file on its way. */
export class Upload {
  /** @type {UploadState} */
  state = "waiting";
  /** From 0 to 1: of what is sent, then of its passages; null where nobody knows. @type {number|null} */
  share = 0;
  done = 0;
  of = 0;
  /** What of it was not read. */
  cut = "";
  /** @type {Failure|null} */
  failure = null;
  stopping = new AbortController();

  /**
   * @param {string} name
   * @param {number} size
   * @param {string[]} libraryIds
   * @param {"sending"|"received"} begins how: what the service keeps is not sent
   * @param {(told: Told) => Promise<unknown>} run resolves at the end of the service's lines
   */
  constructor(name, size, libraryIds, begins, run) {
    this.name = name;
    this.size = size;
    this.libraryIds = libraryIds;
    this.begins = begins;
    this.run = run;
  }

  get ended() {
    return ENDED.has(this.state);
  }

  /** Whether it can still be called off: what the service has received, it reads. */
  get stoppable() {
    return this.state === "waiting" || this.state === "sending";
  }

  /** Whether another try may end otherwise. */
  get repeatable() {
    if (this.state === "aborted" || this.state === "lost") return true;
    return this.state === "refused" && !LASTING.has(this.failure?.code ?? "");
  }

  /** @param {number} bytes @param {number} of */
  sent(bytes, of) {
    if (this.ended) return;
    this.state = bytes < of ? "sending" : "received";
    this.share = bytes < of ? bytes / of : null;
  }

  /** @param {Step} line */
  take(line) {
    if (line.cut !== undefined) this.cut = line.cut;
    if (line.step === "finished") {
      this.state = line.status === "success" || line.status === "unchanged" ? line.status : "refused";
      this.failure = this.state === "refused" ? { code: line.code ?? "internal", message: line.error } : null;
      this.share = null;
    } else if (line.step === "parse" || line.step === "embed" || line.step === "index") {
      this.state = line.step;
      this.done = line.done ?? 0;
      this.of = line.of ?? 0;
      this.share = line.step === "embed" && this.of > 0 ? this.done / this.of : null;
    }
  }

  /** @param {ApiError} error */
  fail(error) {
    if (error.code === "aborted") {
      this.state = "aborted";
    } else if (error.code === "unreachable" && !this.stoppable) {
      this.state = "lost";
    } else {
      this.state = "refused";
      this.failure = error.failure;
    }
  }
}

/** What is the file's own, and so the same at the next try. */
const LASTING = new Set([
  ...["unsupported_type", "empty", "no_text", "not_text", "unknown_charset", "unreadable", "encrypted", "too_complex"],
  ...["unpacks_too_large", "too_large", "missing_filename", "ambiguous", "schema_mismatch", "forbidden", "http_404"],
]);

/** The uploads of this page, by library. `changed` is called for each change of one of them. */
export class Uploading {
  #library;
  /** @type {Upload[]} */
  #all = [];
  #running = 0;
  /** @type {(upload: Upload) => void} */
  changed = () => {};

  /** @param {LibraryApi} library */
  constructor(library) {
    this.#library = library;
  }

  /** Those into a library, in the order in which they were added. @param {string} libraryId */
  into(libraryId) {
    return this.#all.filter(({ libraryIds }) => libraryIds.includes(libraryId));
  }

  /** @param {Named[]} files @param {string[]} libraryIds */
  add(files, libraryIds) {
    const library = this.#library;
    this.#take(
      files.map(({ file, name }) => {
        const run = (/** @type {Told} */ told) => library.upload(file, name, libraryIds, told);
        return new Upload(name, file.size, libraryIds, "sending", run);
      }),
    );
  }

  /** Reads what is kept of a document once more. @param {LibraryDocument} one */
  again({ document_uid: uid, file_path: name, size_bytes: size, tag_ids: libraryIds }) {
    this.#take([new Upload(name, size, libraryIds, "received", (told) => this.#library.readAgain(uid, told))]);
  }

  /** @param {Upload[]} added */
  #take(added) {
    this.#all.push(...added);
    added.forEach((upload) => this.changed(upload));
    this.#next();
  }

  /** @param {Upload} upload */
  stop(upload) {
    upload.stopping.abort();
    if (upload.state !== "waiting") return;
    upload.state = "aborted";
    this.changed(upload);
  }

  /** @param {Upload} upload */
  retry(upload) {
    upload.state = "waiting";
    upload.share = 0;
    upload.failure = null;
    upload.stopping = new AbortController();
    this.changed(upload);
    this.#next();
  }

  /** Forgets those of a library that have ended. @param {string} libraryId */
  clear(libraryId) {
    this.#all = this.#all.filter(({ libraryIds, ended }) => !ended || !libraryIds.includes(libraryId));
  }

  #next() {
    while (this.#running < AT_ONCE) {
      const upload = this.#all.find(({ state }) => state === "waiting");
      if (upload === undefined) return;
      this.#running += 1;
      this.#run(upload).finally(() => {
        this.#running -= 1;
        this.#next();
      });
    }
  }

  /** @param {Upload} upload */
  async #run(upload) {
    const tell = () => this.changed(upload);
    upload.state = upload.begins;
    upload.share = upload.begins === "sending" ? 0 : null;
    tell();
    try {
      await upload.run({
        signal: upload.stopping.signal,
        sent: (bytes, of) => {
          upload.sent(bytes, of);
          tell();
        },
        step: (line) => {
          upload.take(line);
          tell();
        },
      });
      if (!upload.ended) upload.state = "lost"; // the answer ended before the file did
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      upload.fail(error);
    }
    tell();
  }
}

/**
 * Files that a person has chosen, with their folders.
 * @param {FileList} files
 * @returns {Named[]}
 */
export function chosenFiles(files) {
  return Array.from(files, (file) => ({ file, name: file.webkitRelativePath || file.name }));
}

/**
 * Files that were dropped, and those of dropped folders. Called within the drop: its items are gone afterwards.
 * @param {DataTransfer} dropped
 * @returns {Promise<Named[]>}
 */
export async function droppedFiles(dropped) {
  const entries = Array.from(dropped.items, (item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  // What another page's script lets go of has files, and no entries.
  if (entries.length === 0) return chosenFiles(dropped.files);
  /** @type {Named[]} */
  const found = [];
  while (entries.length > 0 && found.length < MOST_ENTRIES) {
    const entry = /** @type {FileSystemEntry} */ (entries.shift());
    if (entry instanceof FileSystemFileEntry) {
      const file = await fileOf(entry);
      if (file !== null) found.push({ file, name: entry.fullPath.replace(/^\//, "") });
    } else if (entry instanceof FileSystemDirectoryEntry) {
      entries.push(...(await entriesOf(entry)));
    }
  }
  return found;
}

/** @param {FileSystemDirectoryEntry} folder @returns {Promise<FileSystemEntry[]>} */
async function entriesOf(folder) {
  const reader = folder.createReader();
  /** @type {FileSystemEntry[]} */
  const all = [];
  while (all.length < MOST_ENTRIES) {
    // It gives a hundred at a time, and none at the end.
    const some = await someOf(reader);
    if (some.length === 0) break;
    all.push(...some);
  }
  return all;
}

/** @param {FileSystemFileEntry} entry @returns {Promise<File|null>} null where it cannot be read */
function fileOf(entry) {
  return new Promise((resolve) => {
    entry.file(resolve, () => resolve(null));
  });
}

/** @param {FileSystemDirectoryReader} reader @returns {Promise<FileSystemEntry[]>} */
function someOf(reader) {
  return new Promise((resolve) => {
    reader.readEntries(resolve, () => resolve([]));
  });
}

/** Whether a file, or a folder that it is in, is hidden. @param {Named} named */
export function isHidden({ name }) {
  return name.split("/").some((part) => part.startsWith("."));
}
