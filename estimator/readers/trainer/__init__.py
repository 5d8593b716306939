"""Programs that train with transformers' Trainer: TrainingArguments, TRL and PEFT arguments to job keys.

Lives here: model, step, LoRA, precision, sharding and run settings as the Trainer decides them.
Callers: ``tools`` and the two entry points of ``readers``.
"""
