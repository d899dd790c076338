/** Each device: what it measured, which submodel it has and why, and how that changed. */
import { Part } from "./app";
import type { Agent, Network, Status, Task } from "./api";
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
                    <AgentTable agents={agents} pins={status.requests?.pins ?? {}} />
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

function AgentTable({ agents, pins }: { agents: Agent[]; pins: Record<string, string> }) {
  const head = [
    ...["agent", "labels", "device", "power", "processors", "memory", "uplink", "examples"],
    ...["state", "submodel", "pinned to"],
    ...["step: predicted", "step: measured", "round: predicted", "round: measured"],
  ];
  const rows = agents.map(({ profile, predicted, measured, ...one }) => [
    one.agent,
    profile?.labels.join(", ") || "–",
    profile ? profile.board.model || profile.board.kind : "–",
    profile?.board.power || "–",
    profile ? profile.cpus : null,
    profile ? bytes(profile.memory) : "–",
    profile?.uplink ? `${bytes(profile.uplink)}/s` : "–",
    profile ? profile.examples : null,
    one.state,
    one.submodel || "–",
    pins[one.agent] ?? "–",
    seconds(predicted.step),
    seconds(measured?.step),
    seconds(predicted.seconds),
    seconds(measured?.seconds),
  ]);
  return (
    <>
      <Figure title="Devices" numbers={{ head, rows }} />
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
