"""The all-MiniLM-L6-v2 network as an ONNX graph, built from the weights that `embed.weights` fetches.

Imports `onnx`, which weighs 60 MB: only the building child process loads this module.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Weights = dict[str, NDArray[Any]]

LAYERS, HEADS, WIDTH = 6, 12, 384
OPSET = 20
"""The first one with both LayerNormalization and Gelu."""
IR_VERSION = 9
_NUMBER_TYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8"}
_MASKED = np.float32(-1e9)


def read_safetensors(path: Path) -> Weights:
    """The tensors of a safetensors file: 8 bytes of header length, a JSON header, then the numbers."""
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    length = int.from_bytes(raw[:8].tobytes(), "little")
    header = json.loads(raw[8 : 8 + length].tobytes())
    tensors: Weights = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = raw[begin:end].view(_NUMBER_TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def build_model(weights: Weights) -> onnx.ModelProto:
    """`input_ids`, `attention_mask` (int64, texts x tokens) -> `embedding` (float32, texts x 384), of norm 1."""
    return _Network(weights).model()


class _Network:
    """BERT with six layers, mean over the tokens, norm 1: nodes are appended in the order in which they compute."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        mask = self._op("Cast", "attention_mask", to=TensorProto.FLOAT)
        x = self._embeddings()
        # 0 where a token is, a large negative number where padding is: added before the softmax.
        gap = self._op("Mul", self._op("Sub", self._constant(np.float32(1)), mask), self._constant(_MASKED))
        gap = self._op("Unsqueeze", gap, self._constant(np.array([1, 2])))
        for number in range(LAYERS):
            x = self._layer(x, gap, f"encoder.layer.{number}.")
        self._pool(x, mask)
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"])
            for name in ("input_ids", "attention_mask")
        ]
        outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["texts", WIDTH])]
        graph = helper.make_graph(self._nodes, "minilm", inputs, outputs, self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        return model

    def _embeddings(self) -> str:
        words = self._op("Gather", self._weight("embeddings.word_embeddings.weight"), "input_ids")
        # `Shape` with bounds: a scalar taken out of the whole shape is rewritten by the runtime into a wrong Slice.
        tokens = self._op("Shape", "input_ids", start=1, end=2)
        zero = self._constant(np.array([0]))
        places = self._op("Slice", self._weight("embeddings.position_embeddings.weight"), zero, tokens, zero)
        kind = self._constant(self._weights["embeddings.token_type_embeddings.weight"][0])
        return self._norm(self._op("Add", self._op("Add", words, places), kind), "embeddings.LayerNorm")

    def _layer(self, x: str, gap: str, prefix: str) -> str:
        attention = prefix + "attention."
        query, key, value = (self._heads(x, f"{attention}self.{part}") for part in ("query", "key", "value"))
        query = self._op("Transpose", query, perm=[0, 2, 1, 3])
        key = self._op("Transpose", key, perm=[0, 2, 3, 1])
        value = self._op("Transpose", value, perm=[0, 2, 1, 3])
        scores = self._op(
            "Mul", self._op("MatMul", query, key), self._constant(np.float32(1 / math.sqrt(WIDTH // HEADS)))
        )
        shares = self._op("Softmax", self._op("Add", scores, gap), axis=-1)
        seen = self._op("Transpose", self._op("MatMul", shares, value), perm=[0, 2, 1, 3])
        seen = self._op("Reshape", seen, self._constant(np.array([0, 0, WIDTH])))
        x = self._norm(
            self._op("Add", x, self._linear(seen, attention + "output.dense")), attention + "output.LayerNorm"
        )
        wide = self._op("Gelu", self._linear(x, prefix + "intermediate.dense"))
        narrow = self._linear(wide, prefix + "output.dense")
        return self._norm(self._op("Add", x, narrow), prefix + "output.LayerNorm")

    def _pool(self, x: str, mask: str) -> None:
        counted = self._op("Mul", x, self._op("Unsqueeze", mask, self._constant(np.array([2]))))
        total = self._op("ReduceSum", counted, self._constant(np.array([1])), keepdims=0)
        tokens = self._op("ReduceSum", mask, self._constant(np.array([1])), keepdims=1)
        mean = self._op("Div", total, tokens)
        norm = self._op("ReduceL2", mean, self._constant(np.array([1])), keepdims=1)
        self._nodes.append(helper.make_node("Div", [mean, norm], ["embedding"]))

    def _heads(self, x: str, name: str) -> str:
        return self._op("Reshape", self._linear(x, name), self._constant(np.array([0, 0, HEADS, WIDTH // HEADS])))

    def _linear(self, x: str, name: str) -> str:
        turned = self._constant(np.ascontiguousarray(self._weights[name + ".weight"].T))
        return self._op("Add", self._op("MatMul", x, turned), self._weight(name + ".bias"))

    def _norm(self, x: str, name: str) -> str:
        scale, shift = self._weight(name + ".weight"), self._weight(name + ".bias")
        return self._op("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-12)

    def _weight(self, name: str) -> str:
        return self._constant(self._weights[name].astype(np.float32))

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name))
        return name

    def _op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name
