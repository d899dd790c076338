// Whether a device's data fit a run.
import type { Card, DataCard } from "./messages";

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
