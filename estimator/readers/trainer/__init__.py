"""Programs that train with transformers' Trainer: job keys from TrainingArguments and TRL's and PEFT's arguments.

Lives here: model, step, LoRA, precision, sharding and run settings as the Trainer decides them.
"""
