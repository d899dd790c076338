// Find out whether the same device was opened twice, for example in two tabs.
import type { Body } from "./messages";

/** The sessions that published a status under this agent's name. */
export class Namesake {
  private born = false; // this session's own status came back
  private readonly older = new Set<string>();

  constructor(private readonly session: string) {}

  /** Return what a status asks of this session: to leave, or to tell the older one to leave. */
  judge(status: Body<"status">, retained: boolean): "" | "leave" | "stay" {
    if (status.session === this.session) {
      this.born ||= status.online && !retained;
      return "";
    }
    if (!this.born) {
      this.older.add(status.session);
      return "";
    }
    if (!status.online || retained) return "";
    return this.older.has(status.session) ? "stay" : "leave";
  }
}
