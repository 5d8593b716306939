"""Optimizers of torch and transformers that keep states as large as the parameters, and none at all.

Sources: torch.optim's own modules (2.13), and what a real step takes (``tests/accuracy``).
"""

from .optimizer import Optimizer, Variant
from .states import Factored, Full

_FOREACH = {"foreach": True, "fused": False}

ROWS = (
    Optimizer(
        name="adamw",
        description="AdamW with foreach, which copies what it steps",
        options={"foreach": True, "amsgrad": False},
        states=(Full(count=2), Full(when="amsgrad")),
        step_copies=1,
        class_names=("torch.optim.AdamW", "torch.optim.Adam", "transformers.AdamW"),
        trainer_names=("adamw_torch", "adamw_hf", "adamw_torch_xla", "adamw", "adam"),
        variants=(Variant(option="fused", row="adamw-fused"),),
        torch_class="torch.optim:AdamW",
        torch_options={"lr": 1e-5},
        same_result="adamw-fused",
        smaller_states="adamw-8bit",
    ),
    Optimizer(
        name="adamw-fused",
        description="AdamW without foreach's copies (fused)",
        options={"amsgrad": False},
        states=(Full(count=2), Full(when="amsgrad")),
        class_names=("apex.optimizers.FusedAdam", "deepspeed.ops.adam.FusedAdam", "transformer_engine.FusedAdam"),
        trainer_names=("adamw_torch_fused", "adamw_apex_fused", "adamw_torch_npu_fused"),
        torch_class="torch.optim:AdamW",
        torch_options={"lr": 1e-5, "fused": True},
        smaller_states="adamw-8bit",
    ),
    Optimizer(
        name="sgd",
        description="SGD without momentum",
        options=_FOREACH,
        class_names=("torch.optim.SGD",),
        trainer_names=("sgd",),
        variants=(Variant(option="momentum", row="sgd-momentum"),),
        torch_class="torch.optim:SGD",
        torch_options={"lr": 1e-5, "momentum": 0},
    ),
    Optimizer(
        name="sgd-momentum",
        description="SGD with momentum",
        options=_FOREACH,
        states=(Full(),),
        torch_class="torch.optim:SGD",
        torch_options={"lr": 1e-5, "momentum": 0.9},
    ),
    Optimizer(
        name="adafactor",
        description="Adafactor",
        states=(Factored(width=4),),
        step_tensors=2,  # the update, and its root mean squares
        step_casts=2,  # of weights and gradients
        class_names=("transformers.Adafactor",),
        trainer_names=("adafactor",),
        torch_class="transformers.optimization:Adafactor",
        torch_options={"lr": 1e-3, "scale_parameter": False, "relative_step": False},
    ),
    Optimizer(
        name="muon",
        description="Muon",
        part="block-matrices",
        states=(Full(),),
        rest=(Full(count=2),),  # AdamW's
        step_tensors=2,
        steps_whole_matrices=True,
        class_names=("torch.optim.Muon",),
        trainer_names=("muon",),
    ),
    Optimizer(name="none", description="no optimizer", steps=False),
    Optimizer(
        name="unknown",
        description="not known",
        states=(Full(count=2, width=4),),
        low=(),
        high=(Full(count=4, width=4),),
        step_tensors=2,
    ),
)
