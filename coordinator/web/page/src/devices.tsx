/** Each device: what it measured, which submodel it has and why, and how that changed. */
import { Part } from "./app";
import type { Agent, Member, Network, Status, Task } from "./api";
import { Assignment } from "./charts";
import { Figure } from "./figure";
import { bytes, seconds } from "./format";
import { type Command, Steering } from "./steering";

export function Devices({ status }: { status: Status }) {
  const version = `${status.rounds_done} ${status.now?.round} ${status.now?.members.length}`;
  return (
    <>
      <Part<Network> run={status.run} part="network" version={0}>
        {(network) => {
          const names = network.submodels.map((one) => one.name);
          return (
            <>
              <Part<{ agents: Agent[] }> run={status.run} part="agents" version={version}>
                {({ agents }) => (
                  <>
                    <Steering run={status.run} commands={listCommands(status, agents, names)} />
                    <AgentTable agents={agents} status={status} />
                  </>
                )}
              </Part>
              <Part<Task[]> run={status.run} part="tasks" version={status.rounds_done}>
                {(tasks) => <History tasks={tasks} names={names} />}
              </Part>
            </>
          );
        }}
      </Part>
    </>
  );
}

function listCommands(status: Status, agents: Agent[], submodels: string[]): Command[] {
  const agent = { name: "agent", label: "Agent", choices: agents.map((one) => one.agent) };
  const pinned = Object.keys(status.requests?.pins ?? {}).sort();
  const commands: Command[] = [
    {
      name: "enroll",
      title: "Enrol a device",
      about: "Create a token with which a device enrols within an hour. Needs an admin's token.",
      fields: [
        { name: "agent", label: "Name", needed: true },
        { name: "groups", label: "Groups", hint: "eu canary" },
      ],
    },
  ];
  if (!agents.length) return commands;
  if (status.state === "running") {
    commands.push({
      name: "pin",
      title: "Pin a submodel",
      about:
        "Give a device this submodel from the next round on, whatever it measured, until the pin " +
        "is removed. Training fails if the submodel does not fit into its memory.",
      fields: [agent, { name: "submodel", label: "Submodel", choices: submodels }],
    });
    if (pinned.length) {
      commands.push({
        name: "pin",
        title: "Remove a pin",
        about: "Let the measurements of a device decide again.",
        fields: [{ ...agent, choices: pinned }],
      });
    }
  }
  commands.push({
    name: "revoke",
    title: "Revoke a device",
    about:
      "Revoke the certificates of a device. The coordinator disconnects it at once, and it must " +
      "be enrolled again to return. Needs an admin's token.",
    fields: [agent],
  });
  return commands;
}

/** The temperature of a device, and whether it is throttled, as far as its system tells. */
function describeHeat({ celsius, throttled }: Member["condition"]): string {
  const parts = [celsius === null ? "" : `${celsius.toFixed(0)} °C`, throttled ? "throttled" : ""];
  return parts.filter(Boolean).join(", ") || "–";
}

function AgentTable({ agents, status }: { agents: Agent[]; status: Status }) {
  const pins = status.requests?.pins ?? {};
  const members = status.state === "running" ? (status.now?.members ?? []) : [];
  const now = new Map(members.map((one) => [one.agent, one]));
  const head = [
    ...["agent", "labels", "device", "power", "heat", "processors", "memory", "uplink", "examples"],
    ...["now", "task", "late in a row", "submodel", "pinned to"],
    ...["step: predicted", "step: measured", "round: predicted", "round: measured"],
    ...["memory: predicted", "memory: measured"],
  ];
  const rows = agents.map(({ profile, predicted, measured, ...one }) => {
    const member = now.get(one.agent);
    return [
      one.agent,
      profile?.labels.join(", ") || "–",
      profile ? profile.board.model || profile.board.kind : "–",
      member?.condition.power || profile?.board.power || "–",
      member ? describeHeat(member.condition) : "–",
      profile ? Number(profile.cpus.toFixed(2)) : null,
      profile ? bytes(profile.memory) : "–",
      profile?.uplink ? `${bytes(profile.uplink)}/s` : "–",
      profile ? profile.examples : null,
      member?.state ?? "–",
      one.state,
      one.standing.misses,
      one.submodel || "–",
      pins[one.agent] ?? "–",
      seconds(predicted.step),
      seconds(measured?.step),
      seconds(predicted.seconds),
      seconds(measured?.seconds),
      predicted.memory ? bytes(predicted.memory) : "–",
      measured?.memory ? bytes(measured.memory) : "–",
    ];
  });
  return (
    <>
      <Figure
        title="Devices"
        note={
          "Power, heat and state as each device reports them now. A prediction is for the present " +
          "submodel, a measurement of the last training."
        }
        numbers={{ head, rows }}
      />
      <Figure
        title="Why each device has its submodel"
        numbers={{
          head: ["agent", "submodel", "reason"],
          rows: agents.map((one) => [one.agent, one.submodel || "–", one.reason]),
        }}
      />
    </>
  );
}

function History({ tasks, names }: { tasks: Task[]; names: string[] }) {
  const agents = [...new Set(tasks.map((one) => one.agent))].sort();
  const rows = agents.map((agent) => {
    const cells = new Map<number, { submodel: string; folded: boolean }>();
    for (const one of tasks) {
      if (one.agent !== agent) continue;
      const round = one.task || one.round;
      const before = cells.get(round)?.folded ?? false;
      cells.set(round, { submodel: one.submodel, folded: before || one.outcome === "folded" });
    }
    return { agent, cells };
  });
  const rounds = [...new Set(tasks.map((one) => one.task || one.round))].sort((a, b) => a - b);
  const used = new Set(tasks.map((one) => one.submodel));
  return (
    <Figure
      title="Submodel of each device by round"
      note="A cross marks an update that did not count."
      numbers={{
        head: ["agent", "round", "submodel", "outcome"],
        rows: tasks.map((one) => [one.agent, one.task || one.round, one.submodel, one.outcome]),
      }}
    >
      <Assignment
        label="Submodel of each device by round"
        names={[...names.filter((name) => used.has(name)), ...[...used].filter((n) => !names.includes(n))]}
        rows={rows}
        rounds={rounds}
      />
    </Figure>
  );
}
