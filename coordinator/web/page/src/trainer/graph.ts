// A training graph: checked before it runs, as federated/device/trainers/graph_checks.py does, and
// run by ONNX Runtime.
import * as ort from "onnxruntime-web/wasm";
import { hash } from "../agent/chunks";
import { readOnnx } from "./onnx_file";

// the list of federated/device/trainers/graph_checks.py, which a test compares with this one
export const OPERATORS = new Set(
  `
Abs Add And ArgMax AveragePool BatchNormalization Cast CastLike Ceil Clip Concat Constant
ConstantOfShape Conv ConvTranspose Cos CumSum DepthToSpace Div Einsum Elu Equal Erf Exp Expand
EyeLike Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Greater
GreaterOrEqual GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN
LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool Mean Min Mish Mod
Mul Neg Not OneHot Or PRelu Pad Pow Range Reciprocal ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax
ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round ScatterElements
ScatterND Selu Shape Sigmoid Sign Sin Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt
Squeeze Sub Sum Tan Tanh Tile TopK Transpose Trilu Unsqueeze Where Xor
`.trim().split(/\s+/),
);
const NEEDED: Record<string, string[]> = {
  step: ["x", "y", "weights", "lr"],
  calibration: ["x", "weights"],
  evaluation: ["x"],
};
const RESULTS: Record<string, string> = { step: "next.p.", calibration: "b.", evaluation: "out." };

/** A task that this device refuses, with the reason. */
export class Refused extends Error {}

export type Values = Record<string, ort.Tensor>;
export interface GraphFile {
  kind: "calibration" | "evaluation" | "step";
  digest: string;
  data: Uint8Array;
}

export class Graph {
  /** Shape of each input, by name. */
  readonly inputs: Map<string, number[]>;

  private constructor(
    private readonly session: ort.InferenceSession,
    readonly title: string,
    readonly properties: Map<string, string>,
  ) {
    this.inputs = new Map();
    for (const one of session.inputMetadata) {
      const shape = one.isTensor ? one.shape.filter((size) => typeof size === "number") : [];
      if (!one.isTensor || shape.length !== one.shape.length || !["float32", "int32"].includes(one.type)) {
        throw new Refused(`${title}: expected inputs of float32 or int32 with fixed shapes, found ${one.name}`);
      }
      this.inputs.set(one.name, shape);
    }
  }

  /** Check and load a graph. submodel: the name of the one that it must be for. Throws Refused. */
  static async load(file: GraphFile, submodel: string): Promise<Graph> {
    const title = `training graph ${file.digest.slice(0, 12)} (${file.kind} of ${submodel})`;
    const properties = checkContents(title, file, submodel);
    let session: ort.InferenceSession;
    try {
      session = await ort.InferenceSession.create(file.data, { executionProviders: ["wasm"], logSeverityLevel: 3 });
    } catch (error) {
      throw new Refused(`${title}: ${error}`);
    }
    const graph = new Graph(session, title, properties);
    graph.checkInterface(file.kind);
    return graph;
  }

  get batch(): number {
    return this.inputs.get("x")?.[0] ?? 0;
  }

  async run(values: Values): Promise<Values> {
    const given: Values = {};
    for (const name of this.inputs.keys()) {
      const value = values[name];
      if (!value) throw new Refused(`${this.title}: the task gives no value for its input ${name}`);
      given[name] = value;
    }
    try {
      return (await this.session.run(given)) as Values;
    } catch (error) {
      throw new Refused(`${this.title}: ${error}`);
    }
  }

  /** Return an input of zeros. */
  zeros(name: string): ort.Tensor {
    const shape = this.inputs.get(name) ?? [];
    return makeFloats(new Float32Array(multiply(shape)), shape);
  }

  close(): Promise<void> {
    return this.session.release();
  }

  private checkInterface(kind: string): void {
    const outputs = this.session.outputNames;
    const absent = (NEEDED[kind] ?? []).filter((name) => !this.inputs.has(name));
    const wanted = RESULTS[kind] ?? "";
    const lost = outputs.filter((name) => name.startsWith("next.") && !this.inputs.has(name.slice(5)));
    if (absent.length) throw new Refused(`${this.title}: expected the inputs ${absent.join(", ")}, found none`);
    if (!this.batch) throw new Refused(`${this.title}: expected batches of examples as x`);
    if (!outputs.some((name) => name.startsWith(wanted))) {
      throw new Refused(`${this.title}: expected outputs named ${wanted}..., found none`);
    }
    if (lost.length || (kind === "step" && !outputs.includes("loss"))) {
      throw new Refused(`${this.title}: expected a loss and the next value of each input alone`);
    }
  }
}

export function makeFloats(data: Float32Array, shape: readonly number[]): ort.Tensor {
  return new ort.Tensor("float32", data, shape);
}

export function multiply(shape: readonly number[]): number {
  return shape.reduce((all, one) => all * one, 1);
}

/** Return the properties of a graph. Throws Refused for one that must not run. */
function checkContents(title: string, file: GraphFile, submodel: string): Map<string, string> {
  if (hash(file.data) !== file.digest) throw new Refused(`${title}: its file is damaged`);
  let found: ReturnType<typeof readOnnx>;
  try {
    found = readOnnx(file.data);
  } catch (error) {
    throw new Refused(`${title}: not a valid ONNX file: ${error}`);
  }
  if (found.external) throw new Refused(`${title}: expected all numbers inside, found some in other files`);
  const odd = [...found.operators].filter((name) => !OPERATORS.has(name));
  if (odd.length) throw new Refused(`${title}: a device does not run the operators ${odd.slice(0, 4).join(", ")}`);
  for (const [name, wanted] of [["kind", file.kind], ["submodel", submodel]] as const) {
    const value = found.properties.get(name) ?? "";
    if (value !== wanted) throw new Refused(`${title}: expected the ${name} '${wanted}', found '${value.slice(0, 80)}'`);
  }
  return found.properties;
}
