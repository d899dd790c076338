/** Each device: what it measured, which submodel it has and why, and how that changed. */
import { useMemo } from "preact/hooks";
import { Part } from "./app";
import type { Agent, Member, Network, Status, Task } from "./api";
import { Assignment, MOST_ROWS } from "./charts";
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
                    <AssignmentTable agents={agents} pins={status.requests?.pins ?? {}} />
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
  const members = status.state === "running" ? (status.now?.members ?? []) : [];
  const now = new Map(members.map((one) => [one.agent, one]));
  const head = [
    ...["agent", "labels", "device", "power", "heat", "processors", "memory", "uplink", "examples"],
    ...["now", "task", "late in a row"],
  ];
  const rows = agents.map(({ profile, ...one }) => {
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
    ];
  });
  return (
    <Figure
      title="Devices"
      note="Power, heat and state as each device reports them now."
      empty="No device has joined yet."
      numbers={{ head, rows }}
      most={200}
    />
  );
}

function AssignmentTable({ agents, pins }: { agents: Agent[]; pins: Record<string, string> }) {
  const head = [
    ...["agent", "submodel", "reason", "pinned to", "step: predicted", "step: measured"],
    ...["round: predicted", "round: measured", "memory: predicted", "memory: measured"],
  ];
  const rows = agents.map(({ agent, submodel, reason, predicted, measured }) => [
    agent,
    submodel || "–",
    reason,
    pins[agent] ?? "–",
    seconds(predicted.step),
    seconds(measured?.step),
    seconds(predicted.seconds),
    seconds(measured?.seconds),
    predicted.memory ? bytes(predicted.memory) : "–",
    measured?.memory ? bytes(measured.memory) : "–",
  ]);
  return (
    <Figure
      title="Why each device has its submodel"
      note="A prediction is for the present submodel, a measurement of the last training."
      empty="No device has joined yet."
      numbers={{ head, rows }}
      most={200}
    />
  );
}

/** The submodel of each agent in each round, and whether its update counted. */
function groupTasks(tasks: Task[]) {
  const found = new Map<string, Map<number, { submodel: string; folded: boolean }>>();
  for (const { agent, submodel, outcome, ...one } of tasks) {
    const round = one.task || one.round;
    const cells = found.get(agent) ?? new Map<number, { submodel: string; folded: boolean }>();
    cells.set(round, { submodel, folded: (cells.get(round)?.folded ?? false) || outcome === "folded" });
    found.set(agent, cells);
  }
  return [...found].sort(([one], [other]) => (one < other ? -1 : 1)).map(([agent, cells]) => ({ agent, cells }));
}

function History({ tasks, names }: { tasks: Task[]; names: string[] }) {
  const rows = useMemo(() => groupTasks(tasks), [tasks]);
  const rounds = [...new Set(tasks.map((one) => one.task || one.round))].sort((a, b) => a - b);
  const used = new Set(tasks.map((one) => one.submodel));
  return (
    <Figure
      title="Submodel of each device by round"
      note={
        "A cross marks an update that did not count." +
        (rows.length > MOST_ROWS ? ` The chart shows ${MOST_ROWS} of ${rows.length} devices.` : "")
      }
      empty="No round has finished yet."
      numbers={{
        head: ["agent", "round", "submodel", "outcome"],
        rows: tasks.map((one) => [one.agent, one.task || one.round, one.submodel, one.outcome]),
      }}
    >
      <Assignment
        label="Submodel of each device by round"
        names={[...names.filter((name) => used.has(name)), ...[...used].filter((n) => !names.includes(n))]}
        rows={rows.slice(0, MOST_ROWS)}
        rounds={rounds}
      />
    </Figure>
  );
}
