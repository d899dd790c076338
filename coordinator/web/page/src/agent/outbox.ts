// Finished updates, kept in the store until the coordinator's receipt.
import { hash, Sender } from "./chunks";
import { Malformed } from "./envelope";
import { HttpUpload } from "./http";
import { type Body, type Card, type Manifest, nameSubmodel, nameTransfer, type Part, type Task } from "./messages";
import type { Store } from "./store";
import type { Topics } from "./topics";

const PREFIX = "update/";
const PAUSE = 3; // seconds after an upload over HTTP for the coordinator to notice it

/** An update and what sends it: in chunks, or over HTTP. begun: whether it is being uploaded over
    HTTP; ended: when the last such upload ended, in seconds. */
export interface Upload {
  task: Task;
  sender: Sender;
  http: HttpUpload;
  size: number;
  begun: boolean;
  ended: number;
}

/** What an outbox tells its agent. count: bytes that leave over HTTP; warn: what keeps them. */
interface Listener {
  count(bytes: number): void;
  warn(problem: string): void;
}

interface Kept {
  run: string;
  task: Task;
  manifest: Manifest;
  data: Uint8Array<ArrayBuffer>;
}

export class Outbox {
  private readonly uploads = new Map<string, Upload>();

  /** agent: the name of this device. */
  constructor(
    private readonly store: Store,
    private readonly agent: string,
    private readonly now: () => number,
    private readonly listener: Listener,
  ) {}

  /** How much of the oldest update was sent, from 0 to 1; null without one. */
  get progress(): number | null {
    const [first] = this.list();
    return first ? Math.max(first.sender.progress, first.http.bytes / first.size) : null;
  }

  /** The updates, the oldest first. */
  list(): Upload[] {
    return [...this.uploads.values()];
  }

  find(task: Task): Upload | undefined {
    return this.uploads.get(nameTransfer(task));
  }

  /** Load what an earlier visit of the page left for this run and agent, and delete what it left for others. */
  async resume(card: Card): Promise<void> {
    for (const key of (await this.store.keys()).filter((one) => one.startsWith(PREFIX))) {
      const kept = (await this.store.get(key)) as Kept | undefined;
      if (kept?.run !== identify(card) || kept.task.agent !== this.agent) await this.store.delete(key);
      else if (!this.uploads.has(kept.manifest.transfer)) {
        this.uploads.set(kept.manifest.transfer, this.makeUpload(kept.task, kept.manifest, kept.data));
      }
    }
  }

  async add(task: Task, data: Uint8Array<ArrayBuffer>, chunk: number, card: Card): Promise<Upload> {
    const transfer = nameTransfer(task);
    const manifest = { transfer, size: data.length, chunk, sha256: hash(data) };
    const upload = this.makeUpload(task, manifest, data);
    this.uploads.set(transfer, upload);
    await this.store.set(PREFIX + transfer, { run: identify(card), task, manifest, data } satisfies Kept);
    return upload;
  }

  private makeUpload(task: Task, manifest: Manifest, data: Uint8Array<ArrayBuffer>): Upload {
    const http = new HttpUpload(data, (bytes) => this.listener.count(bytes), (problem) => this.listener.warn(problem));
    return { task, sender: new Sender(manifest, data, this.now()), http, size: data.length, begun: false, ended: Number.NEGATIVE_INFINITY };
  }

  /** Publish the chunks that the coordinator awaits, and again the offers that it did not answer, or
      whose updates were uploaded over HTTP, which the coordinator looks for then. */
  send(publish: (kind: string, topic: string, body: object) => void, topics: Topics): void {
    for (const upload of this.list()) {
      if (this.noticeEnd(upload) || upload.sender.checkStall(this.now())) publish("offer", topics.say, makeOffer(upload));
      for (const chunk of upload.sender.nextChunks()) publish("chunk", topics.upload(chunk.transfer, chunk.index), chunk);
    }
  }

  /** Return whether an upload over HTTP was completed since the last call. */
  private noticeEnd(upload: Upload): boolean {
    const { http } = upload;
    if (!upload.begun || http.running) return false;
    upload.begun = false;
    upload.ended = this.now();
    if (http.failure) {
      http.reach = 0;
      this.listener.warn(`An update could not be uploaded: ${http.failure}`);
    }
    return !http.failure;
  }

  takeGrant({ transfer, have, open, url, parts }: Body<"grant">): void {
    const upload = this.uploads.get(transfer);
    if (!upload) return;
    const overHttp = url !== "" || parts.length > 0;
    upload.sender.takeGrant(have, open && !overHttp, this.now());
    if (!open || !overHttp) {
      upload.http.stop();
      upload.begun = false;
    } else if (!upload.begun) {
      this.begin(upload, url, parts);
    }
  }

  /** Upload over HTTP. Right after an upload, the coordinator may not have noticed yet what it has. */
  private begin(upload: Upload, url: string, parts: Part[]): void {
    const { http, size } = upload;
    const early = this.now() - upload.ended < PAUSE;
    const reach = early ? http.reach : 0;
    const fresh = parts.filter((part) => part.start >= reach);
    if (parts.some((part) => part.start + part.size > size)) throw new Malformed("grant: a part ends after the update");
    if (url ? early : !fresh.length) return;
    if (url) http.sendWhole(url);
    else http.sendParts(fresh);
    upload.begun = true;
  }

  /** Stop the uploads over HTTP. */
  stop(): void {
    for (const { http } of this.list()) http.stop();
  }

  /** Return the task whose transfer a receipt ends, if it is known. */
  remove(transfer: string): Task | undefined {
    const upload = this.uploads.get(transfer);
    upload?.http.stop();
    this.uploads.delete(transfer);
    void this.store.delete(PREFIX + transfer);
    return upload?.task;
  }

  removeAll(gone: (task: Task) => boolean): void {
    for (const { task } of this.list()) if (gone(task)) this.remove(nameTransfer(task));
  }
}

/** The fields of an offer. */
export function makeOffer({ task, sender }: Upload): object {
  const { run, round, attempt, work } = task;
  return { manifest: sender.manifest, run, round, attempt, work, submodel: nameSubmodel(task.submodel) };
}

/** A text that stays the same when only the coordinator restarts. */
export function identify(card: Card): string {
  return JSON.stringify({ ...card, session: "" });
}
