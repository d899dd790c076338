// Tell the coordinator that this device takes part: its profile, its status, and finished updates.
import type { Link } from "./link";
import { makeOffer, type Outbox } from "./outbox";
import type { Reports } from "./reports";
import { now } from "./tasks";
import type { Topics } from "./topics";
import { Measurement, type Uplink } from "./uplink";
import type { View } from "./view";

const MARGIN = 4096; // bytes of a chunk's envelope
const SMALL = 65_536; // bytes of a chunk before the connection is measured
const REPEAT = 20; // seconds until a refused announcement is repeated again; then twice as long each time
const LONGEST_PAUSE = 600; // seconds

/** What an announcement uses of its agent. */
interface Office {
  readonly link: Link;
  readonly topics: Topics;
  readonly outbox: Outbox;
  readonly reports: Reports;
  readonly view: View;
}

export class Announcement {
  made = false; // on this connection
  private uplink: Uplink | null = null;
  private readonly measurement = new Measurement();
  private measuring = false;
  private repeated = { at: Number.NEGATIVE_INFINITY, pause: 0 };

  constructor(private readonly office: Office) {}

  /** Bytes per chunk of an update. */
  get chunk(): number {
    return (this.uplink?.chunk ?? SMALL) - MARGIN;
  }

  /** Publish profile, status and offers, the first time after a measurement of the connection. */
  async make(): Promise<void> {
    const { link, topics, outbox, reports } = this.office;
    const { card, over } = this.office.view;
    if (!card || this.measuring || over) return;
    if (!this.uplink) {
      this.measuring = true;
      await outbox.resume(card);
      this.uplink = await this.measurement.run(link, topics.probe);
      this.measuring = false;
      if (!this.uplink || this.office.view.link !== "up") return; // it is made on the next connection
    }
    reports.publishProfile(this.uplink);
    reports.publishStatus();
    this.made = true;
    for (const upload of outbox.list()) {
      upload.sender.restart(now());
      reports.publish("offer", topics.say, makeOffer(upload));
    }
  }

  /** Make it again after the coordinator refused a message on this topic, if it was part of it. */
  repeat(topic: string): void {
    const { profile, status } = this.office.topics;
    const { at, pause } = this.repeated;
    if (![profile, status].includes(topic) || now() - at < pause) return;
    this.repeated = { at: now(), pause: Math.min(LONGEST_PAUSE, Math.max(REPEAT, 2 * pause)) };
    void this.make();
  }
}
