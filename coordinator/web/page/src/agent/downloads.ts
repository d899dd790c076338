// Download the weights and graphs of a task, which the coordinator publishes as retained messages,
// or serves over HTTP at the address in their manifest.
import { hash, Receiver, WINDOW } from "./chunks";
import { HttpDownload } from "./http";
import type { Message } from "./messages";
import type { Store } from "./store";

const CHUNK = 2 ** 18; // bytes that count as a chunk over HTTP
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
  private readonly http: HttpDownload;
  private readonly requested = new Map<number, string>();
  private progressed: number;

  constructor(readonly source: Source, private readonly link: Subscriptions, now: number, warn: (problem: string) => void) {
    this.progressed = now;
    this.http = new HttpDownload(source, warn);
    link.subscribe(this.manifest);
  }

  get chunks(): number {
    if (this.http.bytes) return Math.floor(this.http.bytes / CHUNK);
    return this.receiver ? Math.ceil(this.source.size / this.receiver.manifest.chunk) - this.receiver.missing.size : 0;
  }

  /** Handle a message of this blob, and return the blob once it is whole. Throws Malformed. */
  take(message: Message, now: number): Uint8Array | null {
    if (message.kind === "manifest") {
      if (message.body.sha256 !== this.source.digest) return null;
      if (message.body.url) {
        this.http.begin(message.body.url);
        return null;
      }
      this.http.stop(); // it is published in chunks now
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

  /** Return the blob if it is whole over HTTP; else request again what does not come. */
  tick(now: number): Uint8Array | null {
    if (this.http.running) this.progressed = now;
    else if (this.http.whole) this.close();
    else if (now - this.progressed >= PATIENCE) this.restart(now); // after a refusal there may be another address
    return this.http.whole;
  }

  /** Request everything that is missing again. */
  restart(now: number): void {
    this.progressed = now;
    this.unsubscribe();
    this.link.subscribe(this.manifest);
    this.request();
  }

  close(): void {
    this.http.stop();
    this.unsubscribe();
  }

  private unsubscribe(): void {
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
  private counted = 0; // chunks of the active download in `chunks`

  /** warn: told what keeps a download from going on. */
  constructor(
    private readonly link: Subscriptions,
    private readonly store: Store,
    private readonly now: () => number,
    private readonly warn: (problem: string) => void = () => undefined,
  ) {}

  /** Return a blob, from the store or from the broker. It never ends if `stop` is called, or if nothing wants it any more. */
  async fetch(source: Source, isWanted: () => boolean = () => true): Promise<Uint8Array> {
    const known = await this.store.get(source.key);
    if (!isWanted()) return new Promise(() => undefined); // `stop` would end the download of another task
    if (known instanceof Uint8Array && hash(known) === source.digest) return known;
    this.stop();
    const data = await new Promise<Uint8Array>((done) => {
      this.counted = 0;
      this.active = { download: new Download(source, this.link, this.now(), this.warn), done };
    });
    await this.store.set(source.key, data);
    return data;
  }

  /** Handle a manifest or a chunk. Throws Malformed. */
  take(topic: string, message: Message): void {
    const { active } = this;
    if (!active || !topic.startsWith(`${active.download.source.base}/`)) return;
    this.finish(active.download.take(message, this.now()));
  }

  tick(): void {
    if (this.active) this.finish(this.active.download.tick(this.now()));
  }

  /** Count what came, and hand over a whole blob. */
  private finish(data: Uint8Array | null): void {
    const { active } = this;
    if (!active) return;
    this.chunks += Math.max(0, active.download.chunks - this.counted);
    this.counted = active.download.chunks;
    if (!data) return;
    this.active = null;
    active.done(data);
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

