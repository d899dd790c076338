/** Releases of a run: the versions, what their agents report, and what happened. */
import { useState } from "preact/hooks";
import { Part } from "./app";
import type { Releases, Status } from "./api";
import { Figure } from "./figure";
import { clock, ratio } from "./format";
import { type Command, type Field, Steering } from "./steering";

const BROKER: Field = { name: "broker", label: "Broker", hint: "empty: the run's own broker" };
const FORCE: Field = { name: "force", label: "Despite reasons against it", box: true };
const COMMANDS: Command[] = [
  {
    name: "release",
    title: "Release",
    about:
      "Export the submodels of the last round, and release them: to all agents that infer, or " +
      "to some of them first (a canary).",
    fields: [
      { name: "share", label: "Canary", hint: "10%, a number or names; empty: all agents" },
      BROKER,
      FORCE,
    ],
  },
  {
    name: "collect reports",
    title: "Collect reports",
    about: "Ask the broker for what the agents report now.",
    fields: [BROKER],
  },
  {
    name: "promote",
    title: "Promote",
    about: "Release the canary to all agents, if its agents report success.",
    fields: [BROKER, FORCE],
  },
  {
    name: "roll back",
    title: "Roll back",
    about: "Withdraw the canary, or the last release if there is no canary.",
    fields: [BROKER],
  },
];

export function ReleasesView({ status }: { status: Status }) {
  const [version, setVersion] = useState(0);
  return (
    <>
      <Steering run={status.run} commands={COMMANDS} done={() => setVersion(version + 1)} />
      <Part<Releases> run={status.run} part="releases" version={version}>
        {(found) => (
          <>
            <Versions found={found} />
            <Reports found={found} />
            <Figure
              title="What happened"
              empty="No release yet."
              numbers={{
                head: ["time", "version", "what", "agents of the canary", "reasons"],
                rows: [...found.events]
                  .reverse()
                  .map((one) => [
                    clock(one.time),
                    one.version,
                    one.what,
                    one.agents.join(", "),
                    one.reasons.join("; "),
                  ]),
              }}
            />
          </>
        )}
      </Part>
    </>
  );
}

function Versions({ found }: { found: Releases }) {
  const roles: [string, string][] = [
    [found.stable, "stable: for all agents"],
    [found.canary, `canary: for ${found.agents.join(", ")}`],
    [found.previous, "previous: for a rollback"],
  ];
  const role = (name: string) =>
    roles
      .filter(([version]) => version === name)
      .map(([, meaning]) => meaning)
      .join("; ");
  const rows = Object.entries(found.versions).map(([name, one]) => [
    name,
    one.round,
    role(name) || "no longer offered",
    one.submodels.map((submodel) => (one.untrained.includes(submodel) ? `${submodel} (not trained)` : submodel)).join(", "),
  ]);
  rows.sort((one, other) => Number(other[1]) - Number(one[1]));
  return <Figure title="Versions" empty="No release yet." numbers={{ head: ["version", "round", "role", "submodels"], rows }} />;
}

const milliseconds = (value: number | null) => (value === null ? "–" : `${(1000 * value).toFixed(2)} ms`);

function Reports({ found }: { found: Releases }) {
  return (
    <Figure
      title="Reports of agents"
      empty="No agent has reported, or the reports were not collected."
      note="As last collected. Times are of one request, measured on the device."
      numbers={{
        head: [
          ...["agent", "state", "version", "submodel", "variant", "median", "90 %"],
          ...["accuracy before", "accuracy", "answered", "failed", "refused"],
        ],
        rows: found.reports.map((one) => [
          one.agent,
          one.state,
          one.version || "–",
          one.submodel || "–",
          one.variant || "–",
          milliseconds(one.p50),
          milliseconds(one.p90),
          ratio(one.accuracy_before),
          ratio(one.accuracy),
          one.answered,
          one.failed,
          one.refused ? `${one.refused}: ${one.reason}` : "",
        ]),
      }}
    />
  );
}
