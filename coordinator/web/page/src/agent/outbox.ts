// Finished updates, kept in the store until the coordinator's receipt.
import { hash, Sender } from "./chunks";
import { type Body, type Card, type Manifest, nameSubmodel, nameTransfer, type Task } from "./messages";
import type { Store } from "./store";
import type { Topics } from "./topics";

const PREFIX = "update/";

/** An update and the transfer that sends it. */
export interface Upload {
  task: Task;
  sender: Sender;
}

interface Kept {
  run: string;
  task: Task;
  manifest: Manifest;
  data: Uint8Array;
}

export class Outbox {
  private readonly uploads = new Map<string, Upload>();

  /** agent: the name of this device. */
  constructor(private readonly store: Store, private readonly agent: string, private readonly now: () => number) {}

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
        this.uploads.set(kept.manifest.transfer, { task: kept.task, sender: new Sender(kept.manifest, kept.data, this.now()) });
      }
    }
  }

  async add(task: Task, data: Uint8Array, chunk: number, card: Card): Promise<Upload> {
    const transfer = nameTransfer(task);
    const manifest = { transfer, size: data.length, chunk, sha256: hash(data) };
    const upload = { task, sender: new Sender(manifest, data, this.now()) };
    this.uploads.set(transfer, upload);
    await this.store.set(PREFIX + transfer, { run: identify(card), task, manifest, data } satisfies Kept);
    return upload;
  }

  /** Publish the chunks that the coordinator awaits, and again the offers that it did not answer. */
  send(publish: (kind: string, topic: string, body: object) => void, topics: Topics): void {
    for (const upload of this.list()) {
      if (upload.sender.checkStall(this.now())) publish("offer", topics.say, makeOffer(upload));
      for (const chunk of upload.sender.nextChunks()) publish("chunk", topics.upload(chunk.transfer, chunk.index), chunk);
    }
  }

  takeGrant(grant: Body<"grant">): void {
    this.uploads.get(grant.transfer)?.sender.takeGrant(grant.have, grant.open, this.now());
  }

  /** Return the task whose transfer a receipt ends, if it is known. */
  remove(transfer: string): Task | undefined {
    const upload = this.uploads.get(transfer);
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
