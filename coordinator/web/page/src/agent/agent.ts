// An agent of a run: it joins, takes tasks, and sends their updates, as docs/protocol.md specifies.
import { Announcement } from "./announcement";
import { Downloads } from "./downloads";
import { decode, encode } from "./envelope";
import { type Door, type Link, openLink } from "./link";
import { type Body, type Card, type DataCard, explainGoodbye, type Message, type Task } from "./messages";
import { explainMisfit } from "./misfit";
import { Namesake } from "./namesake";
import { identify, Outbox } from "./outbox";
import { describeStatus, type Reporter, Reports } from "./reports";
import { holdOn, type Store } from "./store";
import { now, type Office, Tasks, type Trainer } from "./tasks";
import { Topics } from "./topics";
import { EMPTY, type View } from "./view";

/** Why an agent ends whose device takes part elsewhere. */
export const ELSEWHERE = "This device was opened in another tab or window, which continues. Close this one.";
/** Why an agent ends whose person left. */
export const LEFT = "You left the run.";
const TICK = 500; // milliseconds
const EPOCH = "epoch"; // in the store: the highest of the run's coordinators

/** device: the fields of a profile that describe the device and its trainer. */
export interface Equipment {
  door: Door;
  run: string;
  store: Store;
  trainer: Trainer;
  data: DataCard;
  device: object;
  capabilities: string[];
  onChange(view: View): void;
}

export class Agent implements Office {
  view: View = EMPTY;
  readonly topics: Topics;
  readonly store: Store;
  readonly link: Link;
  readonly downloads: Downloads;
  readonly outbox: Outbox;
  readonly reports: Reports;
  private readonly namesake: Namesake;
  private readonly timer: ReturnType<typeof setInterval>;
  private readonly tasks = new Tasks(this);
  private readonly announcement = new Announcement(this);
  private epoch = 0;

  constructor(private readonly equipment: Equipment) {
    const { door, run, device, data, capabilities } = equipment;
    const session = crypto.getRandomValues(new Uint32Array(4)).join("-");
    const reporter: Reporter = { name: door.name, session, device, data, capabilities };
    this.namesake = new Namesake(session);
    this.topics = new Topics(run, door.name);
    this.store = holdOn(equipment.store, (reason) =>
      this.complain(`The browser cannot store more (${reason}). Training continues, but its work is lost when the page is closed.`),
    );
    const will = { topic: this.topics.status, payload: encode("status", describeStatus(reporter, false, "")) };
    this.link = openLink({ ...door, will }, {
      up: () => this.connect(),
      down: (reason, refused) => this.disconnect(reason, refused),
      message: (topic, payload, retained) => this.receive(topic, payload, retained),
    });
    this.reports = new Reports(reporter, this.topics, this.link, this);
    this.downloads = new Downloads(this.link, this.store, now, (problem) => this.complain(problem));
    this.outbox = new Outbox(this.store, door.name, now, {
      count: (bytes) => this.reports.countUpload(bytes),
      warn: (problem) => this.complain(problem),
    });
    void this.store.get(EPOCH).then((epoch) => { this.epoch = Math.max(this.epoch, Number(epoch ?? 0)); });
    this.timer = setInterval(() => this.tick(), TICK);
  }

  /** Accept no task for a reason; empty: accept tasks again. */
  pause(reason: string): void {
    if (reason === this.view.paused) return;
    this.change({ paused: reason });
    if (reason) this.tasks.putOff(reason);
    if (this.announcement.made) this.reports.publishStatus();
  }

  /** Leave the run, and keep finished updates for the next visit. */
  async leave(reason = LEFT): Promise<void> {
    if (this.view.over) return;
    this.tasks.clear();
    if (this.announcement.made) this.reports.publishStatus(false);
    await this.end(reason);
  }

  // ---- what tasks use ----------------------------------------------------------------------------

  get trainer(): Trainer {
    return this.equipment.trainer;
  }

  get chunk(): number {
    return this.announcement.chunk;
  }

  /** Publish a message about a task. While the connection is down, nothing: it is repeated later. */
  say(kind: string, body: object): void {
    if (this.announcement.made) this.reports.publish(kind, this.topics.say, body);
  }

  // ---- connection --------------------------------------------------------------------------------

  private connect(): void {
    this.change({ link: "up", reason: "" });
    const { card, command, everyone, status } = this.topics;
    for (const topic of [card, command, everyone, status]) this.link.subscribe(topic);
    this.downloads.resume();
    if (this.view.card) void this.announcement.make();
  }

  private disconnect(reason: string, refused: boolean): void {
    this.change({ link: "down", reason });
    this.announcement.made = false;
    if (refused) void this.end("The server no longer accepts this device. Ask for a new code, and scan it.");
  }

  // ---- messages ----------------------------------------------------------------------------------

  private receive(topic: string, payload: Uint8Array, retained: boolean): void {
    this.change({ received: this.view.received + payload.length });
    if (!payload.length || topic === this.topics.probe || this.view.over) return;
    try {
      const message = decode(payload);
      if (!message || (message.epoch && message.epoch < this.epoch)) return;
      if (message.epoch > this.epoch) void this.store.set(EPOCH, message.epoch);
      this.epoch = Math.max(this.epoch, message.epoch);
      this.handle(topic, message, retained);
    } catch (error) {
      this.complain(`A message could not be used: ${error instanceof Error ? error.message : error}`);
    }
  }

  private handle(topic: string, message: Message, retained: boolean): void {
    switch (message.kind) {
      case "run": return this.takeCard(message.body);
      case "task": return this.takeTask(message.body);
      case "manifest": case "chunk": return this.downloads.take(topic, message);
      case "grant":
        this.outbox.takeGrant(message.body);
        return this.sendUpdates();
      case "receipt": return this.takeReceipt(message.body);
      case "abort": return this.takeAbort(message.body);
      case "goodbye": return void this.sayGoodbye(explainGoodbye(message.body));
      case "refusal": return this.takeRefusal(message.body);
      case "status": return this.takeStatus(message.body, retained);
    }
  }

  private takeCard(card: Card): void {
    const known = this.view.card;
    if (card.run !== this.equipment.run || JSON.stringify(card) === JSON.stringify(known)) return;
    const misfit = explainMisfit(card, this.equipment.data);
    this.change({ card });
    if (misfit) return void this.sayGoodbye(misfit);
    if (known && identify(known) !== identify(card)) {
      this.tasks.clear();
      this.outbox.removeAll(() => true);
    }
    void this.announcement.make();
  }

  private takeAbort({ round, attempt }: Body<"abort">): void {
    const isAborted = (task: Task) => task.round <= round && task.attempt <= attempt;
    this.tasks.drop(({ task }) => isAborted(task));
    this.outbox.removeAll(isAborted);
  }

  private takeStatus(status: Body<"status">, retained: boolean): void {
    const verdict = this.namesake.judge(status, retained);
    if (verdict === "stay") this.reports.publishStatus();
    if (verdict === "leave") void this.end(ELSEWHERE);
  }

  private takeRefusal({ reason, about }: Body<"refusal">): void {
    if (about === "joining") return void this.end(`The coordinator does not accept this device: ${reason}`);
    this.complain(`The coordinator refused a message: ${reason}`);
    this.announcement.repeat(about);
  }

  private takeReceipt({ transfer, accepted, reason }: Body<"receipt">): void {
    const task = this.outbox.remove(transfer);
    if (!task) return;
    if (!accepted) this.complain(`Round ${task.round}: the coordinator refused the update: ${reason}`);
    else if (task.work === "train") this.change({ finished: this.view.finished + 1 });
  }

  private takeTask(task: Task): void {
    if (task.run === this.equipment.run && task.agent === this.equipment.door.name) this.tasks.take(task);
  }

  // ---- time --------------------------------------------------------------------------------------

  private tick(): void {
    this.tasks.expire();
    this.change({ activity: this.describeActivity() });
    if (this.view.link !== "up" || !this.announcement.made) return;
    this.downloads.tick();
    if (this.view.activity === "send") this.change({ done: this.outbox.progress });
    this.sendUpdates();
    this.reports.sendHeartbeat(this.tasks);
  }

  private sendUpdates(): void {
    this.outbox.send((kind, topic, body) => this.reports.publish(kind, topic, body), this.topics);
  }

  private describeActivity(): string {
    const first = this.tasks.active;
    if (first) return first.stage === "work" ? first.task.work : "download";
    return this.outbox.list().length ? "send" : "idle";
  }

  // ---- the end -----------------------------------------------------------------------------------

  /** Remove what the broker and the browser keep of a run that is over. */
  private async sayGoodbye(reason: string): Promise<void> {
    this.reports.withdraw();
    this.outbox.removeAll(() => true);
    await this.end(reason);
  }

  private async end(over: string): Promise<void> {
    if (this.view.over) return;
    this.change({ over, activity: "idle", done: null });
    clearInterval(this.timer);
    this.equipment.trainer.stop();
    this.downloads.stop();
    this.outbox.stop();
    await this.link.close();
  }

  complain(problem: string): void {
    this.change({ problems: [...this.view.problems, problem].slice(-5) });
  }

  change(part: Partial<View>): void {
    this.view = { ...this.view, ...part };
    this.equipment.onChange(this.view);
  }
}
