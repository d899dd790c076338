// Receive and send a blob in chunks, without a link or a clock. Times are in seconds.
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import { buf as crc32 } from "crc-32";
import { Malformed } from "./envelope";
import type { Chunk, Manifest } from "./messages";

export const WINDOW = 16; // chunks in flight
const STALL = 5;
const MAX_STALL = 60;

export function hash(data: Uint8Array): string {
  return bytesToHex(sha256(data));
}

function count(manifest: Manifest): number {
  return Math.ceil(manifest.size / manifest.chunk);
}

/** The chunks of a blob that arrive. */
export class Receiver {
  readonly missing: Set<number>;
  private readonly data: Uint8Array;

  /** Throws Malformed for a manifest of another blob. */
  constructor(readonly manifest: Manifest, wanted: { digest: string; size: number }) {
    if (manifest.sha256 !== wanted.digest || manifest.size !== wanted.size) {
      throw new Malformed(`expected a transfer of ${wanted.size} bytes, found one of ${manifest.size}`);
    }
    this.data = new Uint8Array(manifest.size);
    this.missing = new Set(Array.from({ length: count(manifest) }, (_, index) => index));
  }

  /** Store a chunk, and return whether it is new. Throws Malformed for a damaged one. */
  take(chunk: Chunk): boolean {
    const { manifest } = this;
    if (chunk.transfer !== manifest.transfer || !this.missing.has(chunk.index)) return false;
    const start = chunk.index * manifest.chunk;
    const length = Math.min(manifest.chunk, manifest.size - start);
    if (chunk.data.length !== length || crc32(chunk.data) >>> 0 !== chunk.crc32) {
      throw new Malformed(`chunk ${chunk.index} is damaged`);
    }
    this.data.set(chunk.data, start);
    return this.missing.delete(chunk.index);
  }

  /** Return the whole blob, or null if its digest is wrong: then the transfer starts over. */
  finish(): Uint8Array | null {
    if (hash(this.data) === this.manifest.sha256) return this.data;
    for (let index = 0; index < count(this.manifest); index++) this.missing.add(index);
    return null;
  }
}

/** The chunks of a blob that leave, as the receiver's bitmap allows. */
export class Sender {
  private readonly have = new Set<number>();
  private readonly sent = new Set<number>();
  private open = false;
  private asked = false;
  private wait = STALL;

  constructor(readonly manifest: Manifest, private readonly data: Uint8Array, private since: number) {}

  get progress(): number {
    return this.have.size / count(this.manifest);
  }

  /** Start over on a new connection: the next grant tells what the receiver has. */
  restart(now: number): void {
    this.have.clear();
    this.sent.clear();
    this.open = this.asked = false;
    this.since = now;
    this.wait = STALL;
  }

  takeGrant(bitmap: Uint8Array, open: boolean, now: number): void {
    const total = count(this.manifest);
    if (bitmap.length && bitmap.length !== Math.ceil(total / 8)) throw new Malformed("grant: the bitmap has another size");
    let gained = false;
    let lost = false;
    for (let index = 0; open && index < total; index++) {
      const has = (((bitmap[index >> 3] ?? 0) >> (index & 7)) & 1) === 1;
      gained ||= has && !this.have.has(index);
      lost ||= !has && this.have.has(index);
      if (has) this.have.add(index);
      else this.have.delete(index);
    }
    if (this.asked || lost) {
      this.sent.clear();
      for (const index of this.have) this.sent.add(index);
    }
    if (gained || open !== this.open) {
      this.since = now;
      this.wait = STALL;
    }
    this.open = open;
    this.asked = false;
  }

  /** Return the chunks to send now. */
  nextChunks(): Chunk[] {
    const out: Chunk[] = [];
    if (!this.open || this.asked) return out;
    const total = count(this.manifest);
    let room = WINDOW - [...this.sent].filter((index) => !this.have.has(index)).length;
    for (let index = 0; index < total && room > 0; index++) {
      if (this.have.has(index) || this.sent.has(index)) continue;
      this.sent.add(index);
      out.push(this.cut(index, total));
      room--;
    }
    return out;
  }

  /** Return whether to repeat the offer: after 5 s without progress, then after 10, 20, 40, 60 s. */
  checkStall(now: number): boolean {
    if (now - this.since < this.wait) return false;
    this.since = now;
    this.wait = Math.min(MAX_STALL, 2 * this.wait);
    this.asked = true;
    return true;
  }

  private cut(index: number, total: number): Chunk {
    const { transfer, size, chunk } = this.manifest;
    const data = this.data.subarray(index * chunk, (index + 1) * chunk);
    return { transfer, index, total, size, crc32: crc32(data) >>> 0, data };
  }
}
