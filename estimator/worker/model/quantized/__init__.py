"""bitsandbytes' quantized linear layers on fake tensors: their storage, their products, and peft's adapters on them.

Lives here: modules that store and save what bitsandbytes' do, which layers they replace, and k-bit preparation.
Callers: ``model.build``.
"""
