// Topics of the protocol. No other file builds one.

/** The topics of one agent in one run. */
export class Topics {
  readonly card: string;
  readonly command: string;
  readonly everyone: string;
  readonly status: string;
  readonly profile: string;
  readonly heartbeat: string;
  readonly say: string;
  readonly probe: string;

  constructor(private readonly run: string, private readonly agent: string) {
    const root = `fl/v1/${run}`;
    const own = `${root}/agent/${agent}`;
    this.card = `${root}/run`;
    this.command = `${root}/cmd/${agent}`;
    this.everyone = `${root}/cmd/all`;
    this.status = `${own}/status`;
    this.profile = `${own}/profile`;
    this.heartbeat = `${own}/hb`;
    this.say = `${own}/say`;
    this.probe = `${own}/probe`;
  }

  /** Topic of the weights of a submodel, without /manifest or /c/INDEX. */
  model(slot: string, submodel: string): string {
    return `fl/v1/${this.run}/model/${slot}/${spell(submodel)}`;
  }

  graph(digest: string): string {
    return `fl/v1/${this.run}/model/graph/${digest}`;
  }

  upload(transfer: string, index: number): string {
    return `fl/v1/${this.run}/agent/${this.agent}/up/${spell(transfer)}/c/${index}`;
  }
}

/** RabbitMQ turns a dot in a topic into a slash. */
function spell(name: string): string {
  return name.replaceAll(".", ",");
}
