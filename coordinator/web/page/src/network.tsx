/** The network as nested corners, and how often each submodel was trained. */
import { Part } from "./app";
import type { Network, Status } from "./api";
import { Corners } from "./charts";
import { Figure } from "./figure";

export function NetworkView({ status }: { status: Status }) {
  return (
    <Part<Network> run={status.run} part="network" version={status.rounds_done}>
      {(network) => (
        <Figure
          title={`Submodels of ${network.name || status.model}`}
          note={
            "Each rectangle is a submodel: as wide as its share of the channels, as high as its " +
            "share of the blocks. The number counts the updates that trained it; a stronger colour " +
            "is more."
          }
          numbers={{
            head: ["submodel", "width", "blocks per section", "trained by updates"],
            rows: network.submodels.map((one) => [
              one.name,
              one.width,
              one.depths.join(", "),
              one.updates,
            ]),
          }}
        >
          <Corners
            label="Submodels as nested corners of the network"
            submodels={network.submodels.map((one) => ({
              ...one,
              depth: one.depths.reduce((sum, blocks) => sum + blocks, 0) || 1,
            }))}
          />
        </Figure>
      )}
    </Part>
  );
}
