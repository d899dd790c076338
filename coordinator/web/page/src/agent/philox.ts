// Random draws that are the same in every language: Philox4x32-10 (Salmon et al., SC 2011). See
// federated/training/portable_draws.py, which this file repeats.

export const ORDER = 0;
export const MASK = 2;

const ROUNDS = 10;
const LEFT = 0xd2511f53;
const RIGHT = 0xcd9e8d57;
const BUMPS = [0x9e3779b9, 0xbb67ae85] as const;

export type Words = [number, number, number, number];

/** Return the upper 32 bits of the product of two words, from products of 16 bits. */
function multiplyHigh(a: number, b: number): number {
  const [aLow, aHigh, bLow, bHigh] = [a & 0xffff, a >>> 16, b & 0xffff, b >>> 16];
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const carry = aLow * bHigh + (middle & 0xffff);
  return (aHigh * bHigh + Math.floor(middle / 65536) + Math.floor(carry / 65536)) >>> 0;
}

/** Return the four words of a counter. */
export function encrypt(counter: Words, key: readonly [number, number]): Words {
  let [a, b, c, d] = counter;
  let [first, second] = key;
  for (let round = 0; round < ROUNDS; round++) {
    const [left, right] = [Math.imul(LEFT, a) >>> 0, Math.imul(RIGHT, c) >>> 0];
    [a, b, c, d] = [
      (multiplyHigh(RIGHT, c) ^ b ^ first) >>> 0,
      right,
      (multiplyHigh(LEFT, a) ^ d ^ second) >>> 0,
      left,
    ];
    first = (first + BUMPS[0]) >>> 0;
    second = (second + BUMPS[1]) >>> 0;
  }
  return [a, b, c, d];
}

/** All draws of a task. seed: of 64 bits. */
export class Draws {
  private readonly key: readonly [number, number];

  constructor(seed: bigint) {
    this.key = [Number(seed & 0xffffffffn), Number(seed >> 32n)];
  }

  /** Return random words. index: of the pass or step; number: of the draw in it. */
  words(count: number, purpose: number, index: number, number = 0): Uint32Array {
    const out = new Uint32Array(Math.ceil(count / 4) * 4);
    for (let block = 0; block * 4 < count; block++) {
      out.set(encrypt([block, index, purpose, number], this.key), block * 4);
    }
    return out.subarray(0, count);
  }

  /** Return the order of the examples in a pass: the stable argsort of as many words. */
  order(examples: number, index: number): Uint32Array {
    const words = this.words(examples, ORDER, index);
    return Uint32Array.from(words.keys()).sort(
      (a, b) => (words[a] as number) - (words[b] as number) || a - b,
    );
  }

  /** Return ones with a probability, otherwise zeros. */
  ones(probability: number, count: number, purpose: number, index: number, number: number): Float32Array {
    const limit = probability * 2 ** 32;
    return Float32Array.from(this.words(count, purpose, index, number), (word) => Number(word < limit));
  }
}
