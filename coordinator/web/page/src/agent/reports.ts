// What an agent says about itself: its profile, status and heartbeats. Counts all that it sends.
import { encode, PROTOCOL } from "./envelope";
import type { Link } from "./link";
import { type DataCard, heartbeatInterval } from "./messages";
import { now, type Tasks } from "./tasks";
import type { Topics } from "./topics";
import type { Uplink } from "./uplink";
import type { View } from "./view";

/** Who reports. device: the fields of a profile that describe the device and its trainer. */
export interface Reporter {
  name: string;
  session: string;
  data: DataCard;
  device: object;
  capabilities: string[];
}

/** What reports need of their agent. */
interface Desk {
  readonly view: View;
  change(part: Partial<View>): void;
}

export class Reports {
  private beat = { at: Number.NEGATIVE_INFINITY, activity: "" };

  constructor(
    private readonly reporter: Reporter,
    private readonly topics: Topics,
    private readonly link: Link,
    private readonly desk: Desk,
  ) {}

  publish(kind: string, topic: string, body: object, retain = false): void {
    const payload = encode(kind, body);
    this.count(kind, payload.length, kind === "chunk" ? null : body);
    this.link.publish(topic, payload, { retain, qos: kind === "heartbeat" ? 0 : 1 });
  }

  /** Count bytes of an update that leave over HTTP. */
  countUpload(bytes: number): void {
    this.count("upload", bytes, null);
  }

  private count(kind: string, size: number, last: unknown): void {
    const known = this.desk.view.sent[kind] ?? { count: 0, bytes: 0, last: null };
    const sent = { count: known.count + 1, bytes: known.bytes + size, last };
    this.desk.change({ sent: { ...this.desk.view.sent, [kind]: sent } });
  }

  publishProfile({ chunk, uplink }: Uplink): void {
    const { name, device, capabilities, data } = this.reporter;
    const profile = { ...device, agent: name, uplink, chunk, data, timings: [], codecs: ["raw"], capabilities, protocol: PROTOCOL };
    this.publish("profile", this.topics.profile, profile, true);
  }

  publishStatus(online = true): void {
    this.publish("status", this.topics.status, describeStatus(this.reporter, online, this.desk.view.paused), true);
  }

  /** Publish a heartbeat, if one is due. */
  sendHeartbeat(tasks: Tasks): void {
    const first = tasks.active;
    const { activity, card, loss } = this.desk.view;
    const changed = activity !== this.beat.activity;
    if (now() - this.beat.at < heartbeatInterval(first?.task.lease ?? 0, card?.heartbeat ?? 0, changed)) return;
    this.beat = { at: now(), activity };
    const working = first?.stage === "work";
    const [round, work] = working ? [first.task.round, first.task.work] : [0, ""];
    const { name, session } = this.reporter;
    const heartbeat = { agent: name, session, state: activity, round, loss, work, ...tasks.progress };
    this.publish("heartbeat", this.topics.heartbeat, heartbeat);
  }

  /** Remove what the broker keeps about the agent. */
  withdraw(): void {
    for (const topic of [this.topics.profile, this.topics.status]) this.link.publish(topic, new Uint8Array(), { retain: true });
  }
}

export function describeStatus({ name, session }: Reporter, online: boolean, paused: string): object {
  return { agent: name, session, online, paused };
}
