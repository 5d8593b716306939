"""Effects of library calls in a script: optimizers, trainers, accelerators, sharding, and the settings stated to them.

Lives here: torch, transformers, peft, accelerate and TRL as far as memory depends on them; nothing is imported of them.
"""
