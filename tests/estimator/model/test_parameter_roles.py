import pytest

from vramtop.estimator.model.parameter_roles import NamedShape, ParameterKind, with_role


@pytest.mark.parametrize(
    ("name", "kind", "role"),
    [
        ("model.embed_tokens.weight", "embedding", "embedding"),
        ("model.layers.*.self_attn.q_proj.weight", "linear", "attention"),
        ("model.layers.*.self_attn.q_proj.bias", "bias", "attention"),
        ("model.layers.*.self_attn.q_norm.weight", "norm", "norm"),
        ("model.layers.*.self_attn.sinks", "parameter", "attention"),
        ("model.layers.*.mlp.gate_proj.weight", "linear", "mlp"),
        ("model.layers.*.mlp.gate.weight", "parameter", "router"),
        ("model.layers.*.mlp.router.bias", "parameter", "router"),
        ("model.layers.*.mlp.shared_expert_gate.weight", "linear", "router"),
        ("model.layers.*.mlp.shared_experts.up_proj.weight", "linear", "mlp"),
        ("model.layers.*.mlp.experts.gate_up_proj", "parameter", "expert"),
        ("model.layers.*.block_sparse_moe.experts.*.w1.weight", "linear", "expert"),
        ("model.layers.*.block_sparse_moe.gate.weight", "linear", "router"),
        ("transformer.h.*.attn.c_proj.weight", "conv1d", "attention"),
        ("transformer.h.*.mlp.c_proj.weight", "conv1d", "mlp"),
        ("bert.encoder.layer.*.attention.output.dense.weight", "linear", "attention"),
        ("bert.encoder.layer.*.output.dense.weight", "linear", "mlp"),
        ("bert.pooler.dense.weight", "linear", "other"),
        ("cls.predictions.bias", "parameter", "head"),
        ("classifier.out_proj.weight", "linear", "head"),
        ("lm_head.weight", "linear", "head"),
        ("decoder.block.*.layer.*.EncDecAttention.q.weight", "linear", "attention"),
        ("decoder.block.*.layer.*.DenseReluDense.wi_0.weight", "linear", "mlp"),
    ],
)
def test_role_follows_from_the_name(name: str, kind: ParameterKind, role: str) -> None:
    group = with_role(NamedShape(name, (8, 8) if kind in ("linear", "conv1d") else (8,), 1, kind))

    assert group.role == role
    assert group.linear == (kind in ("linear", "conv1d"))
    assert group.layered == ("*" in name)
