// Measure a connection: the largest chunk that passes, and how fast.
import type { Link } from "./link";

const SIZES = [256, 64, 16].map((size) => size * 1024);
const PATIENCE = 15_000; // milliseconds

/** chunk: bytes; uplink: bytes per second, 0 if it is unknown. */
export interface Uplink {
  chunk: number;
  uplink: number;
}

/** Publish messages of falling size to `topic`, until one passes. */
export async function measureUplink(link: Link, topic: string): Promise<Uplink> {
  for (const chunk of SIZES) {
    const begun = performance.now();
    const passed = await new Promise<boolean>((done) => {
      const timer = setTimeout(() => done(false), PATIENCE);
      link.publish(topic, new Uint8Array(chunk), { sent: () => { clearTimeout(timer); done(true); } });
    });
    const seconds = Math.max(1e-3, (performance.now() - begun) / 1000);
    if (passed) return { chunk, uplink: Math.max(1, chunk / seconds) };
  }
  return { chunk: SIZES.at(-1) as number, uplink: 0 };
}
