"""Blocks under torch.compile: what the closed form says that they save, against torch's own min-cut partitioner."""

import warnings
from typing import Any

import pytest

from vramtop.estimator.formula.activations.saved_activations import saved_activations
from vramtop.estimator.job.job_file import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.rank_share import stages
from vramtop.estimator.model.read_architecture import read_architecture

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SEQUENCES, LENGTH = 2, 256
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "head_dim": 32,
    "vocab_size": 64,
}
BLOCKS = [
    ("llama", {"num_key_value_heads": 8}),
    ("llama", {"num_key_value_heads": 2, "intermediate_size": 1024}),
    ("qwen3", {"num_key_value_heads": 4}),
    ("gemma", {"num_key_value_heads": 8, "hidden_activation": "gelu_pytorch_tanh"}),
    ("mistral", {"num_key_value_heads": 4, "sliding_window": None}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sizes"), BLOCKS)
def test_a_compiled_block_saves_what_the_partitioner_keeps(family: str, sizes: dict[str, Any]) -> None:
    config = {"model_type": family, **SIZES, **sizes}
    one, two = (partitioned_bytes(config | {"num_hidden_layers": layers}) for layers in (1, 2))
    training = {"micro_batch": SEQUENCES, "sequence_length": LENGTH, "precision": "bf16", "compile": True}
    tables = {"model": {"config": config | {"num_hidden_layers": 2}}, "training": training}
    job = resolve_job(job_from_mapping(tables, where="test"))
    arch = read_architecture(job.model.config or {})
    saved = saved_activations(job, arch, stages(job, count_parameters(arch))[0])
    assert saved.layer_bytes == pytest.approx(two - one, rel=0.01)


def partitioned_bytes(config: dict[str, Any]) -> int:
    """Return the bytes of activations between the forward and the backward graph of a compiled model."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.compile_fx import _recursive_joint_graph_passes
    from torch._inductor.decomposition import select_decomp_table

    sizes: list[int] = []

    def partition(joint: Any, inputs: Any, **settings: Any) -> Any:
        _recursive_joint_graph_passes(joint)
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **{**settings, "compiler": "inductor"})
        returned = next(node for node in forward.graph.nodes if node.op == "output").args[0]
        for node in set(returned[settings["num_fwd_outputs"] :]):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and not _is_parameter(node, shapes):
                sizes.append(value.numel() * value.element_size())
        return forward, backward

    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields, pad_token_id=0)
    model = transformers.AutoModel.from_config(settings, attn_implementation="sdpa").bfloat16()
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
        ids = torch.zeros(SEQUENCES, LENGTH, dtype=torch.long)
        compiled(input_ids=ids, use_cache=False).last_hidden_state.sum().backward()
    torch._dynamo.reset()
    return sum(sizes)


def _is_parameter(node: Any, shapes: set[tuple[int, ...]]) -> bool:
    while node.op == "call_function" and node.args and hasattr(node.args[0], "op"):
        if node.target not in (torch.ops.aten.permute.default, torch.ops.aten.t.default, torch.ops.aten.view.default):
            break
        node = node.args[0]
    return node.op == "placeholder" and tuple(node.meta["val"].shape) in shapes
