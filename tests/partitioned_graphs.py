"""What torch's min-cut partitioner keeps between the forward and the backward graph of a compiled model.

``from partitioned_graphs import saved_bytes``; pytest's ``pythonpath`` setting makes this folder importable.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch


def saved_bytes(model: Any, loss_of: Callable[[Any], Any], **inputs: Any) -> int:
    """Return the bytes of activations that a step of the compiled model saves, without parameters and random states.

    Args:
        model: on the CPU.
        loss_of: returns the loss of the model's outputs.
        inputs: of its forward pass.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import _recursive_joint_graph_passes
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.virtualized import V

    sizes: list[int] = []

    def partition(joint: Any, joint_inputs: Any, **settings: Any) -> Any:
        values = [node.meta["val"] for node in joint.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
        with V.set_fake_mode(detect_fake_mode(values)):
            _recursive_joint_graph_passes(joint)
        compiler = {**settings, "compiler": "inductor"}
        forward, backward = min_cut_rematerialization_partition(joint, joint_inputs, **compiler)
        returned = next(node for node in forward.graph.nodes if node.op == "output").args[0]
        for node in set(returned[settings["num_fwd_outputs"] :]):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.dtype != torch.uint8 and not _is_parameter(node, shapes):
                sizes.append(value.numel() * value.element_size())
        return forward, backward

    shapes = {tuple(parameter.shape) for parameter in model.parameters()}
    backend = aot_autograd(
        fw_compiler=lambda graph, _: graph,
        bw_compiler=lambda graph, _: graph,
        decompositions=select_decomp_table(),
        partition_fn=partition,
    )
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(model, backend=backend)
        loss_of(compiled(**inputs)).backward()
    torch._dynamo.reset()
    return sum(sizes)


def _is_parameter(node: Any, shapes: set[tuple[int, ...]]) -> bool:
    """Return True for a parameter, or a view or a cast of one."""
    aten, cast = torch.ops.aten, torch.ops.prims.convert_element_type.default
    views = (aten.permute.default, aten.t.default, aten.view.default, cast)
    while node.op == "call_function" and node.args and hasattr(node.args[0], "op"):
        if node.target not in views:
            break
        node = node.args[0]
    return node.op == "placeholder" and tuple(node.meta["val"].shape) in shapes
