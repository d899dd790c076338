// Move blobs over HTTP, where a message of the coordinator names an address. A transfer repeats what
// a lost connection or a server that is away interrupts, and ends if it is refused or stopped.
import { hash } from "./chunks";
import type { Part } from "./messages";

const FIRST_WAIT = 1; // seconds between attempts; doubled while none moves a byte
const LONGEST_WAIT = 60;
const STALL = 30_000; // milliseconds without an answer or a byte of it
const PASSING = [408, 409, 429, 500, 502, 503, 504, 507]; // statuses after which another attempt may succeed
const OFFSET = "Upload-Offset";

class Refused extends Error {}

/** One transfer at a time. bytes: that the receiver has; failure: why the last transfer was refused. */
class Transfer {
  bytes = 0;
  failure = "";
  private controller: AbortController | null = null;

  /** warn: told once for each transfer that has to wait. */
  constructor(private readonly warn: (problem: string) => void) {}

  get running(): boolean {
    return this.controller !== null;
  }

  stop(): void {
    this.controller?.abort();
    this.controller = null;
  }

  protected start(url: string, attempt: (signal: AbortSignal) => Promise<void>): void {
    this.stop();
    const controller = new AbortController();
    this.controller = controller;
    this.failure = "";
    void this.repeat(url, attempt, controller.signal).then((failure) => {
      if (this.controller !== controller) return; // stopped
      this.controller = null;
      this.failure = failure;
    });
  }

  /** Return why the transfer was refused; empty if it is complete or was stopped. */
  private async repeat(url: string, attempt: (signal: AbortSignal) => Promise<void>, signal: AbortSignal): Promise<string> {
    let wait = FIRST_WAIT;
    let told = false;
    while (!signal.aborted) {
      const before = this.bytes;
      try {
        await attempt(signal);
        return "";
      } catch (error) {
        const reason = error instanceof Error ? error.message : String(error);
        if (error instanceof Refused) return reason;
        if (!told && !signal.aborted) this.warn(`${new URL(url).origin} cannot be reached (${reason}). Trying again.`);
        told = true;
      }
      wait = this.bytes > before ? FIRST_WAIT : Math.min(LONGEST_WAIT, 2 * wait);
      await new Promise((resolve) => setTimeout(resolve, wait * 1000 * (0.5 + Math.random() / 2)));
    }
    return "";
  }
}

/** Send a request, and check its answer. A request with a body takes as long as the body needs. */
async function request(url: string, signal: AbortSignal, options: RequestInit): Promise<Response> {
  const answer = fetch(url, { ...options, signal, cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" });
  const response = await (options.body ? answer : within(answer));
  if (response.ok) return response;
  const reason = `${response.status} ${(await response.text()).slice(0, 200)}`.trim();
  throw PASSING.includes(response.status) ? new Error(reason) : new Refused(reason);
}

/** The download of a blob, which goes on at another address where it stopped. */
export class HttpDownload extends Transfer {
  /** The blob, once it is here and its digest is right. */
  whole: Uint8Array | null = null;
  private url = "";
  private readonly data: Uint8Array;

  constructor(private readonly wanted: { digest: string; size: number }, warn: (problem: string) => void) {
    super(warn);
    this.data = new Uint8Array(wanted.size);
  }

  /** Download from an address, unless that is under way. */
  begin(url: string): void {
    if (this.running && url === this.url) return;
    this.url = url;
    this.start(url, (signal) => this.receive(url, signal));
  }

  private async receive(url: string, signal: AbortSignal): Promise<void> {
    const headers: HeadersInit = this.bytes ? { Range: `bytes=${this.bytes}-` } : {};
    if (this.bytes < this.wanted.size) {
      const response = await request(url, signal, { headers });
      if (response.status !== 206) this.bytes = 0; // a server without ranges sends everything
      await this.read(response.body as ReadableStream<Uint8Array>, signal);
    }
    if (this.bytes < this.wanted.size) throw new Error(`only ${this.bytes} of ${this.wanted.size} bytes`);
    if (hash(this.data) !== this.wanted.digest) {
      this.bytes = 0;
      throw new Refused("the downloaded bytes have another digest");
    }
    this.whole = this.data;
  }

  private async read(body: ReadableStream<Uint8Array>, signal: AbortSignal): Promise<void> {
    const reader = body.getReader();
    try {
      for (;;) {
        const { done, value } = await within(reader.read());
        if (done || signal.aborted) return;
        if (this.bytes + value.length > this.wanted.size) throw new Refused(`expected ${this.wanted.size} bytes, found more`);
        this.data.set(value, this.bytes);
        this.bytes += value.length;
      }
    } finally {
      void reader.cancel().catch(() => undefined);
    }
  }
}

/** The upload of a blob. */
export class HttpUpload extends Transfer {
  /** The end of the parts of the last upload; 0 without parts. */
  reach = 0;

  /** count: told the bytes that leave the device. */
  constructor(private readonly data: Uint8Array<ArrayBuffer>, private readonly count: (bytes: number) => void, warn: (problem: string) => void) {
    super(warn);
  }

  /** Send everything to the coordinator's server, from where an earlier upload stopped. */
  sendWhole(url: string): void {
    this.reach = 0;
    this.start(url, async (signal) => {
      const { length } = this.data;
      const known = await request(url, signal, { method: "HEAD" });
      const offset = Number(known.headers.get(OFFSET) ?? Number.NaN);
      if (!Number.isInteger(offset) || offset < 0 || offset > length) throw new Refused(`expected ${OFFSET} from 0 to ${length}`);
      this.bytes = offset;
      if (offset < length) await this.put(url, signal, offset, length, { "Content-Range": `bytes ${offset}-${length - 1}/${length}` });
      this.bytes = length;
    });
  }

  /** Put parts into a store. */
  sendParts(parts: Part[]): void {
    const left = [...parts];
    const [first] = left;
    if (!first) return;
    this.reach = Math.max(...parts.map((part) => part.start + part.size));
    this.start(first.url, async (signal) => {
      for (let [part] = left; part; [part] = left) {
        await this.put(part.url, signal, part.start, part.start + part.size, {});
        this.bytes = part.start + part.size;
        left.shift();
      }
    });
  }

  private async put(url: string, signal: AbortSignal, start: number, end: number, headers: HeadersInit): Promise<void> {
    this.count(end - start);
    const body = this.data.subarray(start, end);
    await request(url, signal, { method: "PUT", body, headers: { "Content-Type": "application/octet-stream", ...headers } });
  }
}

async function within<T>(work: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no byte came for ${STALL / 1000} s`)), STALL);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
