# SPDX-License-Identifier: MIT
"""The contenders that build a graph of one operator first: ONNX Runtime's three, and OpenVINO.

Used through ``bench/contenders.py``.  It optimises no graph by hand, and where an operator has no
such option it says so instead of computing something else.
"""

from __future__ import annotations

import functools

import numpy as np

from .contenders import CannotDo, Contender, Prepared

__all__ = ["OpenVINO", "OrtAttention", "OrtGroupQuery", "OrtMultiHead"]


def _rows_of_heads(array):
    """``(batch, heads, length, size)`` as ``(batch, length, heads * size)``, contiguous."""
    batch, _, length, _ = array.shape
    return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(batch, length, -1)


def _heads_of_rows(array, n_heads):
    """The inverse of :func:`_rows_of_heads`, as a view."""
    return array.reshape(*array.shape[:2], n_heads, -1).swapaxes(1, 2)


class _Ort(Contender):
    """What the operators of ONNX Runtime share: a model of one node, and a session."""

    packages, pip = ("onnxruntime", "onnx"), "onnxruntime onnx"

    def _session(self, node, inputs, outputs=("out",)):
        """A session that runs the node; the shapes are those of the inputs, a dict of arrays."""
        if inputs["query"].dtype.name == "bfloat16":
            raise CannotDo("no bfloat16 on CPUs")
        import onnxruntime
        from onnx import TensorProto, helper

        types = {
            "float32": TensorProto.FLOAT,
            "float16": TensorProto.FLOAT16,
            "int32": TensorProto.INT32,
        }
        given = [
            helper.make_tensor_value_info(name, types[str(array.dtype)], array.shape)
            for name, array in inputs.items()
        ]
        dtype = types[str(inputs["query"].dtype)]
        wanted = [helper.make_tensor_value_info(name, dtype, None) for name in outputs]
        domains = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph([node], "attention", given, wanted)
        model = helper.make_model(graph, opset_imports=domains, ir_version=11)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.n_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def _prepare(self, node, inputs, to_numpy):
        """Inputs as values of the runtime; each call makes a fresh output."""
        from onnxruntime import OrtValue

        session = self._session(node, inputs)
        values = {name: OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        call = functools.partial(session.run_with_ort_values, ["out"], values)
        return Prepared(call, lambda out: to_numpy(out[0].numpy()), keep=inputs)


class OrtAttention(_Ort):
    """The operator ``Attention`` of ONNX, opset 23."""

    name, title = "ort-attention", "ORT Attention"
    differences = "ORT Attention: the ONNX operator (opset 23); OrtValues in, a fresh OrtValue out"

    def prepare(self, workload, inputs):
        from onnx import helper

        node = helper.make_node(
            "Attention", list(inputs), ["out"], is_causal=int(workload.is_causal)
        )
        return self._prepare(node, inputs, np.asarray)


class OrtMultiHead(_Ort):
    """The operator ``com.microsoft.MultiHeadAttention``."""

    name, title = "ort-mha", "ORT MultiHead"
    differences = (
        "ORT MultiHead: com.microsoft.MultiHeadAttention, inputs and output in its own layout"
        " (batch, length, heads * size); no grouped heads"
    )

    def prepare(self, workload, inputs):
        from onnx import helper

        if workload.n_q_heads != workload.n_kv_heads:
            raise CannotDo("no grouped heads")
        node = helper.make_node(
            "MultiHeadAttention",
            list(inputs),
            ["out"],
            domain="com.microsoft",
            num_heads=workload.n_q_heads,
            unidirectional=int(workload.is_causal),
        )
        native = {name: _rows_of_heads(array) for name, array in inputs.items()}
        return self._prepare(node, native, lambda out: _heads_of_rows(out, workload.n_q_heads))


class OrtGroupQuery(_Ort):
    """The operator ``com.microsoft.GroupQueryAttention``: always causal, with a cache."""

    name, title = "ort-gqa", "ORT GroupQuery"
    differences = (
        "ORT GroupQuery: com.microsoft.GroupQueryAttention, in its own layout; causal only, and"
        " it also writes keys and values to its cache: all of them, or in a decoding step the"
        " newest (cache and output bound by I/O binding, written in place)"
    )

    def prepare(self, workload, inputs):
        from onnx import helper

        is_step = workload.n_queries == 1
        if not is_step and not (workload.is_causal and workload.n_queries == workload.n_keys):
            raise CannotDo("always causal")
        query, *cache = inputs.values()
        n_new = workload.n_queries
        native = {"query": _rows_of_heads(query)}
        for name, array in zip(("key", "value"), cache):
            native[name] = _rows_of_heads(array[:, :, -n_new:])
        if is_step:  # the cache: all keys but the newest, and room for that
            native |= {"past_key": cache[0].copy(), "past_value": cache[1].copy()}
        else:
            n_past = (workload.batch, workload.n_kv_heads, 0, workload.head_size)
            native |= {name: np.empty(n_past, query.dtype) for name in ("past_key", "past_value")}
        native["seqlens_k"] = np.full(workload.batch, workload.n_keys - 1, np.int32)
        native["total_sequence_length"] = np.array([workload.n_keys], np.int32)
        node = helper.make_node(
            "GroupQueryAttention",
            list(native),
            ["out", "present_key", "present_value"],
            domain="com.microsoft",
            num_heads=workload.n_q_heads,
            kv_num_heads=workload.n_kv_heads,
        )
        to_numpy = functools.partial(_heads_of_rows, n_heads=workload.n_q_heads)
        if not is_step:
            return self._prepare(node, native, to_numpy)
        return self._prepare_step(node, native, to_numpy)

    def _prepare_step(self, node, native, to_numpy):
        """A decoding step: the newest key and value go into the cache where it lies."""
        from onnxruntime import OrtValue

        session = self._session(node, native, ("out", "present_key", "present_value"))
        values = {name: OrtValue.ortvalue_from_numpy(array) for name, array in native.items()}
        values["out"] = OrtValue.ortvalue_from_numpy(np.empty_like(native["query"]))
        binding = session.io_binding()
        for name in native:
            binding.bind_ortvalue_input(name, values[name])
        for name in ("out", "present_key", "present_value"):
            binding.bind_ortvalue_output(name, values[name.replace("present", "past")])

        def call():
            session.run_with_iobinding(binding)
            return values["out"]

        return Prepared(call, lambda out: to_numpy(out.numpy()), keep=native)


class OpenVINO(Contender):
    """The operation ``ScaledDotProductAttention`` (opset 13) on the CPU plugin."""

    name, title = "openvino", "OpenVINO"
    packages, pip = ("openvino",), "openvino"
    differences = (
        "OpenVINO: ScaledDotProductAttention (opset 13), inference in the dtype of the inputs,"
        " latency hint; inputs shared, the output lies in the request and is written again by every"
        " call"
    )

    def prepare(self, workload, inputs):
        if workload.dtype == "bfloat16":
            raise CannotDo("no bfloat16 arrays from NumPy")
        import openvino
        from openvino import opset13

        dtype = {"float32": openvino.Type.f32, "float16": openvino.Type.f16}[workload.dtype]
        query, *cache = inputs.values()
        group, note = workload.n_q_heads // workload.n_kv_heads, ""
        if group > 1:
            cache = [np.repeat(array, group, axis=1) for array in cache]
            note = (
                f"no grouped heads: keys and values repeated {group} times beforehand, so it has"
                f" {group} times as much to read; its GB/s count each once"
            )
        arrays = [query, *cache]
        given = [opset13.parameter(array.shape, dtype) for array in arrays]
        node = opset13.scaled_dot_product_attention(*given, causal=workload.is_causal)
        compiled = openvino.Core().compile_model(
            openvino.Model([node], given),
            "CPU",
            {
                "INFERENCE_NUM_THREADS": self.n_threads,
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": dtype,  # the default may be bfloat16
            },
        )
        request = compiled.create_infer_request()
        for i, array in enumerate(arrays):
            request.set_input_tensor(i, openvino.Tensor(array, shared_memory=True))

        def call():
            request.infer()
            return request.get_output_tensor(0)

        return Prepared(call, lambda out: out.data, note, keep=arrays)
