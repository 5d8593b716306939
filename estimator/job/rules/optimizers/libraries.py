"""Libraries with optimizers that are widely used: a class of theirs that a script names may be imported and stepped."""

LISTED_LIBRARIES = frozenset(
    (
        *("adam_mini", "adopt", "apex", "apollo_torch", "bitsandbytes", "came_pytorch", "dadaptation", "deepspeed"),
        *("distributed_shampoo", "galore_torch", "grokadamw", "heavyball", "lion_pytorch", "lomo_optim", "muon"),
        *("optimi", "prodigyopt", "pytorch_optimizer", "schedulefree", "soap", "sophia", "timm", "torch", "torchao"),
        *("torch_optimizer", "transformer_engine", "transformers"),
    )
)
"""Their modules. Nothing of another library, of the script itself or of its folder is imported because a script says
so."""
