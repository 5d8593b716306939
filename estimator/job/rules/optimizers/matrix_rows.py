"""Optimizers that treat matrices apart: low-rank states, preconditioners, orthogonalized momentum.

Sources: galore-torch 1.0, apollo-torch 1.0, torch.optim (``_muon.py``), muon-optimizer 0.1, pytorch-optimizer 4.1
(``soap.py``, ``shampoo.py``); states as counted in real steps (``tests/accuracy/optimizer_states.py``).

GaLore's projection is a part of a singular value decomposition: a copy where the gradient has 16 bits, a view that
keeps the whole factor, a square of the shorter side, where it is fp32.
"""

from .optimizer import Factored, Full, LowRank, Optimizer, Quantized, QuantizedLowRank, Squares

_LOW_RANK = {"rank": 128, "targets": ["attn", "mlp"]}
_PROJECTION = (LowRank(side="shorter", under=4), Squares(shorter=True, least=4))
_GALORE = ("galore-torch",)
MATRIX_ROWS = (
    Optimizer(
        name="galore-adamw",
        description="GaLore with AdamW",
        options=_LOW_RANK,
        part="targets",
        states=(LowRank(count=2), *_PROJECTION),
        rest=(Full(count=2),),
        step_tensors=3,  # the gradient and its decomposition
        step_casts=1,
        libraries=_GALORE,
        class_names=("galore_torch.GaLoreAdamW", "galore_torch.adamw.AdamW"),
        trainer_names=("galore_adamw",),
    ),
    Optimizer(
        name="galore-adamw-8bit",
        description="GaLore with AdamW in 8 bits",
        options=_LOW_RANK,
        part="targets",
        states=(QuantizedLowRank(count=2), *_PROJECTION),
        rest=(Quantized(count=2),),
        step_tensors=3,
        step_casts=1,
        libraries=(*_GALORE, "bitsandbytes"),
        class_names=("galore_torch.GaLoreAdamW8bit", "galore_torch.adamw8bit.AdamW8bit"),
        trainer_names=("galore_adamw_8bit",),
    ),
    Optimizer(
        name="galore-adafactor",
        description="GaLore with Adafactor",
        options=_LOW_RANK,
        part="targets",
        states=(Squares(shorter=True, width=4), Factored(width=4, low_rank=True)),  # of the gradient in fp32
        rest=(Factored(width=4),),
        step_tensors=3,
        step_casts=2,
        libraries=_GALORE,
        class_names=("galore_torch.GaLoreAdafactor", "galore_torch.adafactor.Adafactor"),
        trainer_names=("galore_adafactor",),
    ),
    Optimizer(
        name="apollo-adamw",
        description="APOLLO",
        options=_LOW_RANK,
        part="targets",
        states=(LowRank(count=2), LowRank(side="shorter")),
        rest=(Full(count=2),),
        step_parameters=3,
        libraries=("apollo-torch",),
        class_names=("apollo_torch.APOLLOAdamW", "apollo_torch.apollo.AdamW"),
        trainer_names=("apollo_adamw",),
    ),
    Optimizer(
        name="muon",
        description="Muon",
        part="block-matrices",
        states=(Full(),),
        rest=(Full(count=2),),  # AdamW's
        step_tensors=2,
        steps_whole_matrices=True,
        class_names=(
            *("torch.optim.Muon", "muon.Muon", "muon.MuonWithAuxAdam", "muon.SingleDeviceMuonWithAuxAdam"),
            *("muon.SingleDeviceMuon", "pytorch_optimizer.Muon", "deepspeed.runtime.zero.muon.MuonWithAuxAdam"),
        ),
        trainer_names=("muon",),
    ),
    Optimizer(
        name="soap",
        description="SOAP",
        options={"max_precond_dim": 10000},
        states=(Full(count=2), Squares(count=2, limit="max_precond_dim")),
        step_parameters=4,
        class_names=("pytorch_optimizer.SOAP", "soap.SOAP", "heavyball.ForeachSOAP"),
        trainer_names=("soap",),
    ),
    Optimizer(
        name="shampoo",
        description="Shampoo with whole preconditioners",
        states=(Squares(count=2, of_vectors=True), Full()),
        step_parameters=3,
        class_names=("pytorch_optimizer.Shampoo", "torch_optimizer.Shampoo"),
    ),
    Optimizer(
        name="distributed-shampoo",
        description="Shampoo in blocks with grafting",
        states=(Full(count=6, width=4),),  # statistics and inverse roots of square blocks, grafting, momentum
        low=(Full(count=2),),
        high=(Full(count=8, width=4),),
        step_tensors=3,
        class_names=("distributed_shampoo.DistributedShampoo", "pytorch_optimizer.ScalableShampoo"),
    ),
)
