// Measure a connection: the largest chunk that passes, and how fast.
import type { Link } from "./link";

const SIZES = [256, 64, 16].map((size) => size * 1024);
const PATIENCE = 15_000; // milliseconds

/** chunk: bytes; uplink: bytes per second, 0 if it is unknown. */
export interface Uplink {
  chunk: number;
  uplink: number;
}

/** A measurement that may take several connections: a broker ends one for a message that is too large. */
export class Measurement {
  private readonly untried = [...SIZES];

  /** Publish messages of falling size to `topic`, until one passes. Return null if the connection
      is lost meanwhile: call it again on the next one, which begins with the next size. */
  async run(link: Link, topic: string): Promise<Uplink | null> {
    for (let size = this.untried.shift(); size; size = this.untried.shift()) {
      const begun = performance.now();
      const outcome = await send(link, topic, size);
      const seconds = Math.max(1e-3, (performance.now() - begun) / 1000);
      if (outcome === "passed") return { chunk: size, uplink: Math.max(1, size / seconds) };
      if (outcome === "lost" && this.untried.length) return null;
    }
    return { chunk: SIZES.at(-1) as number, uplink: 0 };
  }
}

function send(link: Link, topic: string, size: number): Promise<"late" | "lost" | "passed"> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve("late"), PATIENCE);
    link.publish(topic, new Uint8Array(size), {
      done: (passed) => {
        clearTimeout(timer);
        resolve(passed ? "passed" : "lost");
      },
    });
  });
}
