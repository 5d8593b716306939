"""Optimizers whose states are a few values per row and column of a matrix, and those that keep none.

Sources: transformers (``optimization.py``), torch.optim (``_adafactor.py``), came-pytorch 0.1, lomo-optim 0.1,
adam-mini 1.1, pytorch-optimizer 4.1; states as counted in real steps (``tests/accuracy/optimizer_states.py``).
"""

from .optimizer import Factored, Full, Optimizer, PerRow

FACTORED_ROWS = (
    Optimizer(
        name="adafactor",
        description="Adafactor",
        options={"beta1": False},
        states=(Factored(width=4), Full(width=4, when="beta1")),
        step_tensors=2,  # the update, and its root mean squares
        step_casts=2,  # of weights and gradients
        class_names=("transformers.Adafactor", "transformers.optimization.Adafactor"),
        trainer_names=("adafactor",),
        torch_class="transformers.optimization:Adafactor",
        torch_options={"lr": 1e-3, "scale_parameter": False, "relative_step": False},
    ),
    Optimizer(
        name="adafactor-torch",
        description="torch's Adafactor",
        options={"foreach": False},
        states=(Factored(),),
        step_copies=(Full(),),
        step_parameters=2,
        class_names=("torch.optim.Adafactor",),
    ),
    Optimizer(
        name="came",
        description="CAME",
        states=(Full(width=4), Factored(width=4), Factored(width=4, vectors=False)),
        step_tensors=3,
        step_casts=1,
        libraries=("came-pytorch",),
        class_names=("came_pytorch.CAME",),
        trainer_names=("came_pytorch", "came"),
    ),
    Optimizer(
        name="came-in-weights-dtype",
        description="CAME with states in the weights' dtype",
        states=(Full(), Factored(), Factored(vectors=False)),
        step_parameters=2,
        libraries=("pytorch-optimizer",),
        class_names=("pytorch_optimizer.CAME",),
    ),
    Optimizer(
        name="adam-mini",
        description="Adam-mini",
        states=(Full(), PerRow()),
        step_parameters=3,
        libraries=("adam-mini",),
        other_libraries=("pytorch-optimizer",),
        class_names=("adam_mini.Adam_mini", "pytorch_optimizer.AdamMini"),
        trainer_names=("adam_mini",),
    ),
    Optimizer(
        name="lomo",
        description="LOMO, which applies gradients during backward",
        in_backward=True,
        step_tensors=2,
        libraries=("lomo-optim",),
        other_libraries=("pytorch-optimizer",),
        class_names=("lomo_optim.Lomo", "pytorch_optimizer.LOMO"),
        trainer_names=("lomo",),
    ),
    Optimizer(
        name="adalomo",
        description="AdaLomo, which applies gradients during backward",
        states=(Factored(width=4),),
        in_backward=True,
        step_tensors=4,
        libraries=("lomo-optim",),
        other_libraries=("pytorch-optimizer",),
        class_names=("lomo_optim.AdaLomo", "pytorch_optimizer.AdaLOMO"),
        trainer_names=("adalomo",),
    ),
)
