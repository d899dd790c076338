// Encode and decode named tensors as one blob (docs/protocol.md, "Blobs").
import { decode as unpack, encode as pack } from "@msgpack/msgpack";
import * as v from "valibot";
import { Malformed } from "./envelope";

const MAGIC = 0x4c505345; // "ESPL", little-endian
const PREFIX = 16;
const ALIGNMENT = 64;
const MAX_HEADER = 4 * 2 ** 20;
const ARRAYS = {
  bool: Uint8Array,
  float32: Float32Array,
  float64: Float64Array,
  int8: Int8Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
} as const;

export interface Tensor {
  dtype: keyof typeof ARRAYS;
  shape: number[];
  data: Uint8Array | Int8Array | Int32Array | BigInt64Array | Float32Array | Float64Array;
}
export type Tensors = Map<string, Tensor>;
export interface Blob_ {
  meta: Record<string, unknown>;
  tensors: Tensors;
}

const size = v.pipe(v.number(), v.safeInteger(), v.minValue(0));
const header = v.object({
  meta: v.record(v.string(), v.unknown()),
  tensors: v.array(
    v.tuple([
      v.string(),
      v.picklist(Object.keys(ARRAYS) as (keyof typeof ARRAYS)[]),
      v.pipe(v.array(size), v.maxLength(8)),
      size,
    ]),
  ),
});

export function encodeBlob(meta: object, tensors: Tensors): Uint8Array<ArrayBuffer> {
  const rows: [string, string, number[], number][] = [];
  let end = 0;
  for (const [name, tensor] of tensors) {
    const start = align(end);
    rows.push([name, tensor.dtype, tensor.shape, start]);
    end = start + tensor.data.byteLength;
  }
  const packed = pack({ meta, tensors: rows });
  const base = align(PREFIX + packed.length);
  const out = new Uint8Array(base + end);
  const view = new DataView(out.buffer);
  view.setUint32(0, MAGIC, true);
  view.setUint16(4, 1, true);
  view.setUint32(8, packed.length, true);
  out.set(packed, PREFIX);
  for (const [name, , , start] of rows) {
    const { data } = tensors.get(name) as Tensor;
    out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), base + start);
  }
  return out;
}

/** Return the meta data and copies of the tensors of a blob. Throws Malformed. */
export function decodeBlob(blob: Uint8Array): Blob_ {
  const view = new DataView(blob.buffer, blob.byteOffset, blob.byteLength);
  if (blob.length < PREFIX || view.getUint32(0, true) !== MAGIC || view.getUint16(4, true) !== 1) {
    throw new Malformed("weights: expected a blob of tensors of version 1, found something else");
  }
  const length = view.getUint32(8, true);
  if (view.getUint32(12, true) || length > Math.min(MAX_HEADER, blob.length - PREFIX)) {
    throw new Malformed("weights: the header is cut short");
  }
  const found = v.safeParse(header, read(blob.subarray(PREFIX, PREFIX + length)));
  if (!found.success) throw new Malformed(`weights: ${found.issues[0]?.message}`);
  const base = align(PREFIX + length);
  const tensors: Tensors = new Map();
  let end = 0;
  for (const [name, dtype, shape, start] of found.output.tensors) {
    const count = shape.reduce((all, one) => all * one, 1);
    const bytes = count * ARRAYS[dtype].BYTES_PER_ELEMENT;
    if (start !== align(end) || base + start + bytes > blob.length || tensors.has(name)) {
      throw new Malformed(`weights: the tensor ${name.slice(0, 80)} is not where it should be`);
    }
    const copy = blob.slice(base + start, base + start + bytes);
    tensors.set(name, { dtype, shape, data: new ARRAYS[dtype](copy.buffer) });
    end = start + bytes;
  }
  if (tensors.size && base + end !== blob.length) throw new Malformed("weights: bytes follow the last tensor");
  return { meta: found.output.meta, tensors };
}

function read(packed: Uint8Array): unknown {
  try {
    return unpack(packed);
  } catch (error) {
    throw new Malformed(`weights: the header is not msgpack: ${error}`);
  }
}

function align(offset: number): number {
  return Math.ceil(offset / ALIGNMENT) * ALIGNMENT;
}
