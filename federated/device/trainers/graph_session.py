"""Run a training graph with ONNX Runtime, which keeps the tensors between steps. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import onnxruntime

from federated.errors import Refused
from federated.training.training_inputs import Array

__all__ = ["GraphSession", "Value", "to_value"]

Value: TypeAlias = onnxruntime.OrtValue
TYPES: Mapping[str, np.dtype[np.generic]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(int32)": np.dtype(np.int32),
}


def to_value(array: Array) -> Value:
    """Return an array as a tensor of the runtime."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))


class GraphSession:
    """A loaded graph.

    title: what errors call it
    inputs: shape and type of each input, by name
    outputs: their names
    properties: of the graph
    """

    def __init__(self, graph: bytes, threads: int = 1, title: str = "training graph") -> None:
        """Raises Refused for a graph that the runtime cannot run, or with inputs of other types."""
        self.title = title
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors only
        # one block planned for all tensors has gaps: a step of preresnet-small took 357 MB, not 226
        options.enable_mem_pattern = False
        # tensors that wait for another one of their size: a step of efficientnet-tiny took 355 MB,
        # not 217
        options.enable_mem_reuse = False
        # waiting threads must sleep, as PyTorch's do, since agents may share a machine
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime's errors share no base class of their own
            raise Refused(f"{title}: {error}") from error
        self.inputs: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]] = {}
        for one in self._session.get_inputs():
            if one.type not in TYPES or not all(isinstance(size, int) for size in one.shape):
                raise Refused(
                    f"{title}: expected inputs of float32 or int32 with fixed shapes, found "
                    f"{one.name} of {one.type} {one.shape}"
                )
            self.inputs[str(one.name)] = tuple(one.shape), TYPES[one.type]
        self.outputs = [str(one.name) for one in self._session.get_outputs()]
        self.properties = dict(self._session.get_modelmeta().custom_metadata_map)

    def zeros(self) -> dict[str, Value]:
        """Return zeros for each input."""
        return {name: to_value(np.zeros(*known)) for name, known in self.inputs.items()}

    def run(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the outputs by name; they stay in the runtime's memory. Raises Refused if the
        graph cannot be computed, MemoryError.
        """
        given = {name: values[name] for name in self.inputs}
        try:
            found = self._session.run_with_ort_values(self.outputs, given)
        except Exception as error:  # see above
            if "allocate" in str(error):
                raise MemoryError(str(error)) from error
            raise Refused(f"{self.title}: {error}") from error
        return dict(zip(self.outputs, found, strict=True))
