// Encode and decode messages in their msgpack envelope {v, kind, body}.
import { decode as unpack, encode as pack } from "@msgpack/msgpack";
import * as v from "valibot";
import { type Kind, type Message, SCHEMAS } from "./messages";

const OLDEST = 3; // the lowest version that is read, and that reads all messages that this page sends
export const PROTOCOL = 4;
const MAX_MESSAGE = 2 ** 20; // bytes of any message but a chunk
const LIMITS = { maxStrLength: 2 ** 20, maxBinLength: 2 ** 26, maxArrayLength: 2 ** 16, maxMapLength: 2 ** 16, maxExtLength: 0 };

/** A message that is not valid, or of another version of the protocol. */
export class Malformed extends Error {}

const envelope = v.object({
  v: v.number(),
  kind: v.string(),
  body: v.record(v.string(), v.unknown()),
  epoch: v.optional(v.number(), 0),
});

export function encode(kind: string, body: object): Uint8Array {
  return pack({ v: OLDEST, kind, body });
}

/** Return the message of a payload, or null for a kind that devices do not receive. Throws
    Malformed. The crc32 is not checked, because the decoder does not keep the body's bytes. */
export function decode(payload: Uint8Array): Message | null {
  let given: unknown;
  try {
    given = unpack(payload, LIMITS);
  } catch (error) {
    throw new Malformed(`expected msgpack, found ${payload.length} bytes of something else: ${error}`);
  }
  const found = v.safeParse(envelope, given);
  if (!found.success) throw new Malformed(`not a message: ${explain(found.issues)}`);
  const { kind, body, epoch } = found.output;
  if (found.output.v < OLDEST || found.output.v > PROTOCOL) {
    throw new Malformed(
      `the coordinator speaks protocol ${found.output.v}, this page ${OLDEST} to ${PROTOCOL}: reload the page`,
    );
  }
  if (!Object.hasOwn(SCHEMAS, kind)) return null;
  if (kind !== "chunk" && payload.length > MAX_MESSAGE) throw new Malformed(`${kind}: more than 1 MiB`);
  const checked = v.safeParse(SCHEMAS[kind as Kind] as v.GenericSchema, body);
  if (!checked.success) throw new Malformed(`${kind}: ${explain(checked.issues)}`);
  return { kind, body: checked.output, epoch } as Message;
}

function explain(issues: v.BaseIssue<unknown>[]): string {
  const [first] = issues;
  return first ? `${v.getDotPath(first) ?? ""} ${first.message}`.trim().slice(0, 300) : "invalid";
}
