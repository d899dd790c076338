// Sums of scores over examples, as federated/training/array_scores.py makes them.

export type Tally = Record<string, number[]>;

/** Return the outputs of a network's exits by view. outs: [N, classes] of each exit; labels: the
    classes that the device holds. */
export function listViews(outs: Float32Array[], classes: number, labels: number[]): Record<string, Float32Array> {
  const last = outs.at(-1) as Float32Array;
  const views: Record<string, Float32Array> = { all: last };
  if (outs.length > 1) {
    views.ensemble = last.map((_, at) => outs.reduce((sum, out) => sum + (out[at] as number), 0) / outs.length);
    outs.forEach((out, exit) => { views[`exit${exit}`] = out; });
  }
  if (labels.length) {
    const held = new Set(labels);
    views.labels = last.map((value, at) => (held.has(at % classes) ? value : 0));
  }
  return views;
}

/** Return the sums of one batch. logits: [N, classes]; truth: N classes. */
export function tally(logits: Float32Array, truth: ArrayLike<number>, classes: number, perClass: boolean): Tally {
  const found: Tally = { count: [truth.length], loss: [0], right: [0] };
  const counts = () => new Array<number>(classes).fill(0);
  const [hits, guessed, real] = [counts(), counts(), counts()];
  let [loss, right] = [0, 0];
  for (let example = 0; example < truth.length; example++) {
    const row = logits.subarray(example * classes, (example + 1) * classes);
    const most = row.reduce((a, b) => Math.max(a, b), -Infinity);
    const guess = row.indexOf(most);
    const label = truth[example] as number;
    loss += most + Math.log(row.reduce((sum, one) => sum + Math.exp(one - most), 0)) - (row[label] as number);
    right += Number(guess === label);
    bump(guessed, guess);
    bump(real, label);
    if (guess === label) bump(hits, guess);
  }
  found.loss = [loss];
  found.right = [right];
  if (perClass && classes <= 1000) Object.assign(found, { hits, guessed, true: real });
  return found;
}

function bump(counts: number[], index: number): void {
  counts[index] = (counts[index] ?? 0) + 1;
}

/** Add a tally to a sum. */
export function add(sum: Tally | undefined, one: Tally): Tally {
  if (!sum) return one;
  return Object.fromEntries(
    Object.entries(one).map(([name, values]) => [name, values.map((value, at) => value + (sum[name]?.[at] ?? 0))]),
  );
}
