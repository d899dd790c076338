// What a page shows of its agent.
import type { Card } from "./messages";

/** Messages of one kind that left the device. last: the content of the last one. */
export interface Sent {
  count: number;
  bytes: number;
  last: unknown;
}

/**
 * link: state of the connection; reason: why it is down.
 * over: why the device has left the run; empty while it takes part.
 * activity: as heartbeats name it: idle, download, send, or the work of a task.
 * done: progress of the activity, from 0 to 1; null if it is unknown.
 * losses: of the last trainings on this visit, by round.
 * finished: trainings that the coordinator accepted.
 * sent: what left the device, by kind of message.
 * problems: sentences for the person, the latest last.
 */
export interface View {
  link: "connecting" | "up" | "down";
  reason: string;
  over: string;
  card: Card | null;
  activity: string;
  round: number;
  done: number | null;
  loss: number;
  losses: { round: number; loss: number }[];
  finished: number;
  received: number;
  sent: Record<string, Sent>;
  paused: string;
  problems: string[];
}

export const EMPTY: View = {
  link: "connecting",
  reason: "",
  over: "",
  card: null,
  activity: "idle",
  round: 0,
  done: null,
  loss: Number.NaN,
  losses: [],
  finished: 0,
  received: 0,
  sent: {},
  paused: "",
  problems: [],
};
