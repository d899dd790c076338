// An agent of a run: it joins, takes tasks, and sends their updates, as docs/protocol.md specifies.
import { Downloads } from "./downloads";
import { decode, encode } from "./envelope";
import { type Door, type Link, openLink } from "./link";
import { type Body, type Card, type DataCard, heartbeatInterval, type Message, type Task } from "./messages";
import { Namesake } from "./namesake";
import { identify, makeOffer, Outbox } from "./outbox";
import { holdOn, type Store } from "./store";
import { now, type Office, Tasks, type Trainer } from "./tasks";
import { Topics } from "./topics";
import { measureUplink, type Uplink } from "./uplink";
import { EMPTY, type View } from "./view";

/** Why an agent ends whose device takes part elsewhere. */
export const ELSEWHERE = "This device was opened in another tab or window, which continues. Close this one.";
const TICK = 500; // milliseconds
const MARGIN = 4096; // bytes of a chunk's envelope
const SMALL = 65_536; // bytes of a chunk before the connection is measured
const REPEAT = 20; // seconds until a refused profile is repeated again; then twice as long each time
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
  private readonly session = crypto.getRandomValues(new Uint32Array(4)).join("-");
  readonly topics: Topics;
  readonly store: Store;
  private readonly link: Link;
  readonly downloads: Downloads;
  readonly outbox: Outbox;
  private readonly namesake = new Namesake(this.session);
  private readonly timer: ReturnType<typeof setInterval>;
  private readonly tasks = new Tasks(this);
  private uplink: Uplink | null = null;
  private measuring = false;
  private announced = false;
  private epoch = 0;
  private beat = { at: Number.NEGATIVE_INFINITY, activity: "" };
  private repeat = { at: Number.NEGATIVE_INFINITY, pause: 0 };

  constructor(private readonly equipment: Equipment) {
    const { door, run } = equipment;
    this.topics = new Topics(run, door.name);
    this.store = holdOn(equipment.store, (reason) =>
      this.complain(`The browser cannot store more (${reason}). Training continues, but its work is lost when the page is closed.`),
    );
    const will = { topic: this.topics.status, payload: encode("status", this.describeStatus(false)) };
    this.link = openLink({ ...door, will }, {
      up: () => this.connect(),
      down: (reason, refused) => this.disconnect(reason, refused),
      message: (topic, payload, retained) => this.receive(topic, payload, retained),
    });
    this.downloads = new Downloads(this.link, this.store, now);
    this.outbox = new Outbox(this.store, now);
    void this.store.get(EPOCH).then((epoch) => { this.epoch = Math.max(this.epoch, Number(epoch ?? 0)); });
    this.timer = setInterval(() => this.tick(), TICK);
  }

  /** Accept no task for a reason; empty: accept tasks again. */
  pause(reason: string): void {
    if (reason === this.view.paused) return;
    this.change({ paused: reason });
    if (reason) this.tasks.putOff(reason);
    if (this.announced) this.publishStatus();
  }

  /** Leave the run, and keep finished updates for the next visit. */
  async leave(reason = "You left the run."): Promise<void> {
    if (this.view.over) return;
    this.tasks.clear();
    if (this.announced) this.publish("status", this.topics.status, this.describeStatus(false), true);
    await this.end(reason);
  }

  // ---- what tasks use ----------------------------------------------------------------------------

  get trainer(): Trainer {
    return this.equipment.trainer;
  }

  get chunk(): number {
    return (this.uplink?.chunk ?? SMALL) - MARGIN;
  }

  /** Publish a message about a task. While the connection is down, nothing: it is repeated later. */
  say(kind: string, body: object): void {
    if (this.announced) this.publish(kind, this.topics.say, body);
  }

  // ---- connection --------------------------------------------------------------------------------

  private connect(): void {
    this.change({ link: "up", reason: "" });
    const { card, command, everyone, status, probe } = this.topics;
    void probe; // the broker's acknowledgement is enough
    for (const topic of [card, command, everyone, status]) this.link.subscribe(topic);
    this.downloads.resume();
    if (this.view.card) void this.announce();
  }

  private disconnect(reason: string, refused: boolean): void {
    this.change({ link: "down", reason });
    this.announced = false;
    if (refused) void this.end("The server no longer accepts this device. Ask for a new code, and scan it.");
  }

  /** Publish profile, status and offers, the first time after a measurement of the connection. */
  private async announce(): Promise<void> {
    const { card } = this.view;
    if (!card || this.measuring || this.view.over) return;
    if (!this.uplink) {
      this.measuring = true;
      this.uplink = await measureUplink(this.link, this.topics.probe);
      await this.outbox.resume(card);
      this.measuring = false;
      if (this.view.link !== "up") return;
    }
    this.publish("profile", this.topics.profile, this.describeProfile(this.uplink), true);
    this.publishStatus();
    this.announced = true;
    for (const upload of this.outbox.list()) {
      upload.sender.restart(now());
      this.publish("offer", this.topics.say, makeOffer(upload));
    }
  }

  private describeProfile({ chunk, uplink }: Uplink): object {
    const { device, capabilities, data, door } = this.equipment;
    return { ...device, agent: door.name, uplink, chunk, data, timings: [], codecs: ["raw"], capabilities };
  }

  private describeStatus(online: boolean): object {
    return { agent: this.equipment.door.name, session: this.session, online, paused: this.view.paused };
  }

  private publishStatus(): void {
    this.publish("status", this.topics.status, this.describeStatus(true), true);
  }

  private publish(kind: string, topic: string, body: object, retain = false): void {
    const payload = encode(kind, body);
    const known = this.view.sent[kind] ?? { count: 0, bytes: 0, last: null };
    const last = kind === "chunk" ? null : body;
    const sent = { count: known.count + 1, bytes: known.bytes + payload.length, last };
    this.change({ sent: { ...this.view.sent, [kind]: sent } });
    this.link.publish(topic, payload, { retain, qos: kind === "heartbeat" ? 0 : 1 });
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
        return this.sendChunks();
      case "receipt": return this.takeReceipt(message.body);
      case "abort": return this.takeAbort(message.body);
      case "goodbye": return void this.sayGoodbye(`The run is over: ${message.body.reason}`);
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
    void this.announce();
  }

  private takeAbort({ round, attempt }: Body<"abort">): void {
    const isAborted = (task: Task) => task.round <= round && task.attempt <= attempt;
    this.tasks.drop(({ task }) => isAborted(task));
    this.outbox.removeAll(isAborted);
  }

  private takeStatus(status: Body<"status">, retained: boolean): void {
    const verdict = this.namesake.judge(status, retained);
    if (verdict === "stay") this.publishStatus();
    if (verdict === "leave") void this.end(ELSEWHERE);
  }

  private takeRefusal({ reason, about }: Body<"refusal">): void {
    if (about === "joining") return void this.end(`The coordinator does not accept this device: ${reason}`);
    this.complain(`The coordinator refused a message: ${reason}`);
    if (![this.topics.profile, this.topics.status].includes(about) || now() - this.repeat.at < this.repeat.pause) return;
    this.repeat = { at: now(), pause: Math.min(600, Math.max(REPEAT, 2 * this.repeat.pause)) };
    void this.announce();
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
    if (this.view.link !== "up" || !this.announced) return;
    this.downloads.tick();
    for (const upload of this.outbox.list()) {
      if (upload.sender.checkStall(now())) this.publish("offer", this.topics.say, makeOffer(upload));
      if (this.view.activity === "send") this.change({ done: upload.sender.progress });
    }
    this.sendChunks();
    this.sendHeartbeat();
  }

  private sendChunks(): void {
    for (const { sender } of this.outbox.list()) {
      for (const chunk of sender.nextChunks()) {
        this.publish("chunk", this.topics.upload(chunk.transfer, chunk.index), chunk);
      }
    }
  }

  private describeActivity(): string {
    const first = this.tasks.active;
    if (first) return first.stage === "work" ? first.task.work : "download";
    return this.outbox.list().length ? "send" : "idle";
  }

  private sendHeartbeat(): void {
    const first = this.tasks.active;
    const { activity } = this.view;
    if (now() - this.beat.at < heartbeatInterval(first?.task.lease ?? 0) && activity === this.beat.activity) return;
    this.beat = { at: now(), activity };
    const working = first?.stage === "work";
    const [round, work] = working ? [first.task.round, first.task.work] : [0, ""];
    const { name } = this.equipment.door;
    const heartbeat = { agent: name, session: this.session, state: activity, round, loss: this.view.loss, work, ...this.tasks.progress };
    this.publish("heartbeat", this.topics.heartbeat, heartbeat);
  }

  // ---- the end -----------------------------------------------------------------------------------

  /** Remove what the broker and the browser keep of a run that is over. */
  private async sayGoodbye(reason: string): Promise<void> {
    for (const topic of [this.topics.profile, this.topics.status]) this.link.publish(topic, new Uint8Array(), { retain: true });
    this.outbox.removeAll(() => true);
    await this.end(reason);
  }

  private async end(over: string): Promise<void> {
    if (this.view.over) return;
    this.change({ over, activity: "idle", done: null });
    clearInterval(this.timer);
    this.equipment.trainer.stop();
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

/** Return why data do not fit a run; empty if they fit. */
export function explainMisfit({ network }: Card, data: DataCard): string {
  if (!network) return "";
  if (network.objective !== "class") return "This run learns something else than classes, which this page cannot train.";
  if (network.inputs.join() !== data.inputs.join()) {
    return `This run needs examples of shape ${network.inputs.join(" x ")}, but ${data.name} has ${data.inputs.join(" x ")}.`;
  }
  if (network.outputs < data.outputs) return `This run has ${network.outputs} classes, but ${data.name} has ${data.outputs}.`;
  return "";
}
