// Data sets as blobs of tensors (coordinator/phones/practice_data.py).
import { decodeBlob } from "../agent/blob";
import { Malformed } from "../agent/envelope";
import type { Dataset, Examples } from "./examples";

/** Return the data set of a blob. Throws Malformed. */
export function decodeDataset(blob: Uint8Array): Dataset {
  const { meta, tensors } = decodeBlob(blob);
  const pick = (suffix: string): Examples => {
    const [x, y] = [tensors.get(`x${suffix}`), tensors.get(`y${suffix}`)];
    if (!(x?.data instanceof Uint8Array) || !(y?.data instanceof Int32Array) || x.shape[0] !== y.data.length) {
      throw new Malformed("data: expected x of uint8, and y of int32 with a class for each example");
    }
    return { x: x.data, y: y.data };
  };
  const inputs = tensors.get("x")?.shape.slice(1) ?? [];
  return { name: String(meta.name), inputs, outputs: Number(meta.outputs), train: pick(""), held: pick("_held") };
}
