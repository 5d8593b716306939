"""FSDP1, torch's ``FullyShardedDataParallel``, really applied to fake tensors.

Lives here: the units that accelerate wraps, the wrapping itself, and what makes its communication visible to the
tracker: components, and the streams that use a storage (``record_stream``).
Callers: ``step``.
"""
