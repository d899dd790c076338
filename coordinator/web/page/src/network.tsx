/** The network as nested corners, and who trained which region how often. */
import { useMemo } from "preact/hooks";
import { useChoice } from "./address";
import { Part } from "./app";
import type { Network, Status } from "./api";
import { Corners, MOST_ROWS, Trainings } from "./charts";
import { Figure } from "./figure";

export function NetworkView({ status }: { status: Status }) {
  const [agent, choose] = useChoice("agent");
  return (
    <Part<Network> run={status.run} part="network" version={status.rounds_done}>
      {(network) => {
        const agents = [...new Set(network.trained.map((one) => one.agent))].sort();
        return (
          <>
            <p class="control">
              <label for="agent">Trained by</label>
              <select
                id="agent"
                value={agents.includes(agent) ? agent : ""}
                onInput={(event) => choose(event.currentTarget.value)}
              >
                <option value="">all devices</option>
                {agents.map((name) => (
                  <option key={name} value={name}>
                    {name}
                  </option>
                ))}
              </select>
            </p>
            <Regions network={network} model={status.model} agent={agents.includes(agent) ? agent : ""} />
            <Trainers network={network} agents={agents} />
          </>
        );
      }}
    </Part>
  );
}

/** How many updates of each device trained each region. */
function countUpdates(network: Network): Map<string, Map<string, number>> {
  const found = new Map<string, Map<string, number>>();
  for (const { agent, regions, updates } of network.trained) {
    const counts = found.get(agent) ?? new Map<string, number>();
    for (const region of regions) counts.set(region, (counts.get(region) ?? 0) + updates);
    found.set(agent, counts);
  }
  return found;
}

function Regions({ network, model, agent }: { network: Network; model: string; agent: string }) {
  const counts = useMemo(() => countUpdates(network).get(agent), [network, agent]);
  const submodels = network.submodels.map((one) => ({
    ...one,
    updates: agent ? (counts?.get(one.name) ?? 0) : one.updates,
  }));
  return (
    <Figure
      title={`Submodels of ${network.name || model}${agent ? `, trained by ${agent}` : ""}`}
      file="submodels"
      note={
        "Each rectangle is a submodel: as wide as its share of the channels, as high as its " +
        "share of the blocks. The number counts the updates that trained it; a stronger colour " +
        "is more."
      }
      numbers={{
        head: ["submodel", "width", "blocks per section", "trained by updates"],
        rows: submodels.map((one) => [one.name, one.width, one.depths.join(", "), one.updates]),
      }}
    >
      <Corners
        label="Submodels as nested corners of the network"
        submodels={submodels.map((one) => ({
          ...one,
          depth: one.depths.reduce((sum, blocks) => sum + blocks, 0) || 1,
        }))}
      />
    </Figure>
  );
}

function Trainers({ network, agents }: { network: Network; agents: string[] }) {
  const names = network.submodels.map((one) => one.name);
  const counts = useMemo(() => countUpdates(network), [network]);
  const rows = agents.slice(0, MOST_ROWS).map((agent) => ({
    agent,
    counts: names.map((name) => counts.get(agent)?.get(name) ?? 0),
  }));
  return (
    <Figure
      title="Who trained which region how often"
      empty="No update has been folded yet."
      note={
        "Updates that trained a submodel as a whole; with many methods, those of larger " +
        "submodels do so, too." +
        (agents.length > MOST_ROWS ? ` The chart shows ${MOST_ROWS} of ${agents.length} devices.` : "")
      }
      numbers={{
        head: ["agent", "with submodel", "updates", "last in round", "regions"],
        rows: network.trained.map((one) => [
          one.agent,
          one.submodel,
          one.updates,
          one.last,
          one.regions.join(", "),
        ]),
      }}
    >
      <Trainings label="Updates of each device by region" names={names} rows={rows} />
    </Figure>
  );
}
