// The tasks of an agent, one at a time: download, run, and hand the update to the outbox.
import type { GraphFile } from "../trainer/graph";
import type { Job, Outcome } from "../trainer/perform";
import type { Downloads } from "./downloads";
import { nameSubmodel, nameTransfer, type Task } from "./messages";
import { makeOffer, type Outbox } from "./outbox";
import type { Store } from "./store";
import type { Topics } from "./topics";
import type { View } from "./view";

const FAILURES = 16; // remembered, to repeat them
const LOSSES = 300; // shown, since a run may last for weeks

/** Runs tasks. A stopped task never ends. */
export interface Trainer {
  perform(job: Job, onStep: (step: number, steps: number, loss: number) => void): Promise<Outcome>;
  stop(): void;
}

/** What tasks use of their agent. chunk: bytes per chunk of an update; say: publish a message. */
export interface Office {
  readonly topics: Topics;
  readonly store: Store;
  readonly downloads: Downloads;
  readonly outbox: Outbox;
  readonly trainer: Trainer;
  readonly view: View;
  readonly chunk: number;
  say(kind: string, body: object): void;
  change(part: Partial<View>): void;
  complain(problem: string): void;
}

/** A task that is not finished. until: its deadline on the page's clock, in seconds. */
interface Open {
  task: Task;
  until: number;
  stage: "waiting" | "download" | "work";
}

export class Tasks {
  private open: Open[] = [];
  private failures: Record<string, unknown>[] = [];
  private step = { step: 0, steps: 0 };

  constructor(private readonly office: Office) {}

  /** The task in progress, if any. */
  get active(): Open | undefined {
    return this.open[0];
  }

  /** Steps of the task in progress, for heartbeats. */
  get progress(): { step: number; steps: number } {
    return this.active?.stage === "work" ? this.step : { step: this.office.downloads.chunks, steps: 0 };
  }

  /** Open a task, unless it is known: then repeat what was said about it. */
  take(task: Task): void {
    const name = nameTransfer(task);
    const sending = this.office.outbox.find(task);
    if (sending) return this.office.say("offer", makeOffer(sending));
    const failed = this.failures.find((one) => one.transfer === name);
    if (failed) return this.publishFailure(failed);
    const open = this.open.find((one) => nameTransfer(one.task) === name);
    if (open) {
      open.until = now() + task.deadline;
      return;
    }
    this.drop((one) => supersedes(task, one.task));
    this.office.outbox.removeAll((old) => supersedes(task, old));
    if (this.office.view.paused) return this.fail(task, this.office.view.paused, true);
    this.open.push({ task, until: now() + task.deadline, stage: "waiting" });
    this.startNext();
  }

  private startNext(): void {
    const [next] = this.open;
    if (!next || next.stage !== "waiting") return;
    next.stage = "download";
    this.step = { step: 0, steps: 0 };
    void this.carryOut(next);
  }

  /** Download what a task needs, run it, and offer its update. */
  private async carryOut(open: Open): Promise<void> {
    const { task } = open;
    try {
      const job = await this.fetchJob(open);
      if (!this.open.includes(open)) return;
      open.stage = "work";
      this.office.change({ round: task.round });
      const outcome = await this.office.trainer.perform(job, (step, steps, loss) => {
        this.step = { step, steps };
        this.office.change({ done: step / steps, loss });
      });
      if (!this.open.includes(open) || !this.office.view.card) return;
      if (task.work === "train") {
        const losses = [...this.office.view.losses, { round: task.round, loss: outcome.loss }].slice(-LOSSES);
        this.office.change({ loss: outcome.loss, losses });
      }
      const upload = await this.office.outbox.add(task, outcome.update, this.office.chunk, this.office.view.card);
      this.office.say("offer", makeOffer(upload));
    } catch (error) {
      if (!this.open.includes(open)) return;
      this.fail(task, error instanceof Error ? error.message : String(error), false);
    }
    this.open = this.open.filter((one) => one !== open);
    this.office.change({ done: null });
    this.startNext();
  }

  private async fetchJob(open: Open): Promise<Job> {
    const { task } = open;
    const isWanted = () => this.open.includes(open);
    const graphs: GraphFile[] = [];
    for (const { kind, digest, size } of task.graphs) {
      const data = await this.office.downloads.fetch({ base: this.office.topics.graph(digest), key: `graph/${digest}`, digest, size }, isWanted);
      graphs.push({ kind, digest, data });
    }
    const base = this.office.topics.model(task.slot, nameSubmodel(task.submodel));
    const weights = await this.office.downloads.fetch({ base, key: `weights/${task.digest}`, digest: task.digest, size: task.size }, isWanted);
    for (const key of await this.office.store.keys()) {
      if (isWanted() && key.startsWith("weights/") && key !== `weights/${task.digest}`) await this.office.store.delete(key);
    }
    return { task, weights, graphs };
  }

  private fail(task: Task, reason: string, paused: boolean): void {
    const { run, round, attempt, work } = task;
    const failure = { run, round, attempt, work, submodel: nameSubmodel(task.submodel), reason: reason.slice(0, 1000), paused };
    const known = { ...failure, transfer: nameTransfer(task) };
    if (!paused) {
      this.failures = [...this.failures, known].slice(-FAILURES);
      this.office.complain(`Round ${round}: this device could not ${work}: ${reason}`);
    }
    this.publishFailure(known);
  }

  private publishFailure({ transfer, ...failure }: Record<string, unknown>): void {
    void transfer;
    this.office.say("failure", failure);
  }

  /** Drop open tasks, but no finished updates. */
  drop(gone: (open: Open) => boolean): void {
    const [first] = this.open;
    this.open = this.open.filter((one) => !gone(one));
    if (first && !this.open.includes(first)) {
      if (first.stage === "download") this.office.downloads.stop();
      if (first.stage === "work") this.office.trainer.stop();
      this.office.change({ done: null });
    }
    this.startNext();
  }

  /** Drop tasks past their deadlines. */
  expire(): void {
    this.drop((one) => now() > one.until);
  }

  /** Fail all tasks, which another attempt may complete. */
  putOff(reason: string): void {
    for (const { task } of this.open) this.fail(task, reason, true);
    this.drop(() => true);
  }

  /** Forget all tasks and failures, because the run changed. */
  clear(): void {
    this.drop(() => true);
    this.failures = [];
  }
}

export function now(): number {
  return performance.now() / 1000;
}

/** Whether a task makes an older one obsolete. An evaluation leaves an earlier training alone. */
function supersedes(task: Task, old: Task): boolean {
  const later = task.round > old.round || (task.round === old.round && task.attempt > old.attempt);
  return later && (task.work === "train" || old.work !== "train");
}
