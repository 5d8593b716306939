"""LitGPT: the flags of ``litgpt finetune_lora CHECKPOINT_DIR --train.micro_batch_size 4`` and its YAML."""
