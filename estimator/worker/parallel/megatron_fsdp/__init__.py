"""Megatron-FSDP in the worker: the buckets that it allocates, of its sizes, at its times, on its streams.

The package is not imported: these modules follow its source (megatron-fsdp 0.6.1: ``megatron_fsdp.py``,
``param_and_grad_buffer.py``, ``fully_shard.py``) and leave out what allocates nothing, such as collectives. The trace
runs as rank 0.

Lives here: what goes into which bucket (``buckets``), weights (``gathered_weights``), gradients
(``reduced_gradients``), the hooks that call them and the optimizer's step (``engine``).
Callers: ``step``.
"""
