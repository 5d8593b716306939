"""Sizes that frameworks choose where a job states none."""

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""DistributedDataParallel's first bucket, and its others (``torch/nn/parallel/distributed.py``)."""
MEGATRON_CAPACITY = 1_000_000_000
"""Least elements that Megatron-FSDP has in flight (``suggested_communication_unit_size``)."""
ZERO_ELEMENTS = {
    "reduce_bucket": 500_000_000,
    "prefetch_bucket": 50_000_000,
    "max_live_parameters": 1_000_000_000,
    "max_reuse_distance": 1_000_000_000,
    "persistence_threshold": 100_000,
    "sub_group": 1_000_000_000,
}
"""DeepSpeed's sizes, in elements (``runtime/zero/config.py``), by the keys of a job file's table ``zero``."""
