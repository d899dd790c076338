"""Check a training graph before a device runs it: it must be a file with the digest that the task
names, hold everything it needs, and consist of operators that only compute. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from federated.device.trainers.graph_names import NEXT, OUT, PARAMETER, STATISTIC
from federated.device.trainers.graph_session import GraphSession
from federated.errors import Refused
from federated.onnx_graph_contents import list_external_files, list_operators
from federated.task import MAX_GRAPH

__all__ = ["OPERATORS", "load_graph", "refuse_contents"]

# what `export.trainstep` needs for the built-in families and the layers that it can translate. None
# has a subgraph, whose loop could be endless, or draws random numbers.
NAMES = """
Abs Add And ArgMax AveragePool BatchNormalization Cast CastLike Ceil Clip Concat Constant
ConstantOfShape Conv ConvTranspose Cos CumSum DepthToSpace Div Einsum Elu Equal Erf Exp Expand
EyeLike Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Greater
GreaterOrEqual GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN
LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool Mean Min Mish Mod
Mul Neg Not OneHot Or PRelu Pad Pow Range Reciprocal ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax
ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round ScatterElements
ScatterND Selu Shape Sigmoid Sign Sin Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt
Squeeze Sub Sum Tan Tanh Tile TopK Transpose Trilu Unsqueeze Where Xor
"""
OPERATORS = frozenset(NAMES.split())
NEEDED: Mapping[str, tuple[str, ...]] = {  # inputs by kind
    "step": ("x", "y", "weights", "lr"),
    "calibration": ("x", "weights"),
    "evaluation": ("x",),
}
RESULTS = {"step": f"{NEXT}{PARAMETER}", "calibration": STATISTIC, "evaluation": OUT}


def load_graph(path: Path, kind: str, submodel: str, threads: int) -> GraphSession:
    """Return the graph in a file that is named after its sha256.

    submodel: the name of the one that it must be for.
    Raises Refused for a graph that must not run or cannot, and OSError.
    """
    if (size := path.stat().st_size) > MAX_GRAPH:
        raise Refused(f"training graph: expected at most {MAX_GRAPH} bytes, found {size}")
    data = path.read_bytes()
    title = f"training graph {path.stem[:12]} ({kind} of {submodel})"
    if (digest := sha256(data).hexdigest()) != path.stem:
        raise Refused(f"{title}: its file is damaged: it has the sha256 {digest[:12]}")
    refuse_contents(title, data)
    session = GraphSession(data, threads, title)
    properties = session.properties
    for name, wanted in (("kind", kind), ("submodel", submodel)):
        if (found := properties.get(name, "")) != wanted:
            raise Refused(f"{title}: expected the {name} '{wanted}', found '{found}'")
    refuse_interface(title, kind, session)
    return session


def refuse_contents(title: str, data: bytes) -> None:
    """Raise Refused for a graph that reads files or has operators outside `OPERATORS`."""
    try:
        files, used = list_external_files(data), list_operators(data)
    except ValueError as error:
        raise Refused(f"{title}: not a valid ONNX file: {error}") from error
    if files:
        raise Refused(f"{title}: expected all numbers inside, found some in {', '.join(files)}")
    odd = [
        f"{domain}:{name}" if domain else name
        for domain, name in used
        if domain or name not in OPERATORS
    ]
    if odd:
        raise Refused(f"{title}: a device does not run the operators {', '.join(odd[:4])}")


def refuse_interface(title: str, kind: str, session: GraphSession) -> None:
    """Raise Refused for a graph without the inputs and outputs of its kind."""
    if absent := [name for name in NEEDED[kind] if name not in session.inputs]:
        raise Refused(f"{title}: expected the inputs {', '.join(absent)}, found none")
    if not session.inputs["x"][0]:
        raise Refused(f"{title}: expected batches of examples as x, found a number")
    wanted = RESULTS[kind]
    if not any(name.startswith(wanted) for name in session.outputs):
        raise Refused(f"{title}: expected outputs named {wanted}..., found none")
    lost = [
        name
        for name in session.outputs
        if name.startswith(NEXT) and name.removeprefix(NEXT) not in session.inputs
    ]
    if lost or (kind == "step" and "loss" not in session.outputs):
        raise Refused(f"{title}: expected a loss and the next value of each input alone")
