// Download the weights and graphs of a task, which the coordinator publishes as retained messages.
import { hash, Receiver, WINDOW } from "./chunks";
import type { Message } from "./messages";
import type { Store } from "./store";

const PATIENCE = 5; // seconds without a chunk until all is requested again

/** A published blob. base: its topic without /manifest or /c/INDEX; key: its name in the store. */
export interface Source {
  base: string;
  key: string;
  digest: string;
  size: number;
}

export interface Subscriptions {
  subscribe(topic: string): void;
  unsubscribe(topic: string): void;
}

/** The download of one blob. */
class Download {
  private receiver: Receiver | null = null;
  private readonly requested = new Map<number, string>();
  private progressed: number;

  constructor(readonly source: Source, private readonly link: Subscriptions, now: number) {
    this.progressed = now;
    link.subscribe(this.manifest);
  }

  get chunks(): number {
    return this.receiver ? Math.ceil(this.source.size / this.receiver.manifest.chunk) - this.receiver.missing.size : 0;
  }

  /** Handle a message of this blob, and return the blob once it is whole. Throws Malformed. */
  take(message: Message, now: number): Uint8Array | null {
    if (message.kind === "manifest") {
      if (message.body.sha256 !== this.source.digest) return null;
      if (this.receiver?.manifest.transfer !== message.body.transfer || this.receiver.manifest.chunk !== message.body.chunk) {
        this.receiver = new Receiver(message.body, this.source);
      }
      this.progressed = now;
    } else if (message.kind !== "chunk" || !this.receiver?.take(message.body)) {
      return null;
    } else {
      this.progressed = now;
      const topic = this.requested.get(message.body.index);
      if (topic) this.link.unsubscribe(topic);
      this.requested.delete(message.body.index);
    }
    const whole = this.receiver.missing.size === 0 ? this.receiver.finish() : null;
    if (!whole) this.request();
    else this.close();
    return whole;
  }

  tick(now: number): void {
    if (now - this.progressed >= PATIENCE) this.restart(now);
  }

  /** Request everything that is missing again. */
  restart(now: number): void {
    this.progressed = now;
    this.close();
    this.link.subscribe(this.manifest);
    this.request();
  }

  close(): void {
    this.link.unsubscribe(this.manifest);
    for (const topic of this.requested.values()) this.link.unsubscribe(topic);
    this.requested.clear();
  }

  private get manifest(): string {
    return `${this.source.base}/manifest`;
  }

  private request(): void {
    for (const index of this.receiver?.missing ?? []) {
      if (this.requested.size >= WINDOW) break;
      if (this.requested.has(index)) continue;
      const topic = `${this.source.base}/c/${index}`;
      this.requested.set(index, topic);
      this.link.subscribe(topic);
    }
  }
}

/** Downloads one blob at a time into a store. */
export class Downloads {
  chunks = 0; // downloaded since the page was opened
  private active: { download: Download; done: (data: Uint8Array) => void } | null = null;

  constructor(private readonly link: Subscriptions, private readonly store: Store, private readonly now: () => number) {}

  /** Return a blob, from the store or from the broker. It never ends if `stop` is called, or if nothing wants it any more. */
  async fetch(source: Source, isWanted: () => boolean = () => true): Promise<Uint8Array> {
    const known = await this.store.get(source.key);
    if (!isWanted()) return new Promise(() => undefined); // `stop` would end the download of another task
    if (known instanceof Uint8Array && hash(known) === source.digest) return known;
    this.stop();
    const data = await new Promise<Uint8Array>((done) => {
      this.active = { download: new Download(source, this.link, this.now()), done };
    });
    await this.store.set(source.key, data);
    return data;
  }

  /** Handle a manifest or a chunk. Throws Malformed. */
  take(topic: string, message: Message): void {
    const { active } = this;
    if (!active || !topic.startsWith(`${active.download.source.base}/`)) return;
    const before = active.download.chunks;
    const data = active.download.take(message, this.now());
    this.chunks += Math.max(0, active.download.chunks - before);
    if (!data) return;
    this.active = null;
    active.done(data);
  }

  tick(): void {
    this.active?.download.tick(this.now());
  }

  /** Request everything again, on a new connection. */
  resume(): void {
    this.active?.download.restart(this.now());
  }

  stop(): void {
    this.active?.download.close();
    this.active = null;
  }
}

