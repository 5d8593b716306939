"""Flags that people copy along from other tools' command lines, on which the memory of a GPU does not depend."""

IGNORED_SWITCHES = (
    *("--tf32", "--packing", "--group-by-length", "--do-train", "--do-eval", "--overwrite-output-dir", "--push-to-hub"),
)
"""Ignored flags that may stand without a value."""
IGNORED_FLAGS = (
    *("--learning-rate", "--lr", "--num-train-epochs", "--epochs", "--num-epochs", "--max-steps", "--warmup-steps"),
    *("--warmup-ratio", "--weight-decay", "--lr-scheduler-type", "--seed", "--logging-steps", "--save-steps"),
    *("--eval-steps", "--max-grad-norm", "--lora-alpha", "--quant-type", "--dataset"),
    *(
        "--num-generations",
        "--dataset-name",
        "--run-name",
        "--save-strategy",
        "--logging-strategy",
        "--dataloader-num-workers",
    ),
    *IGNORED_SWITCHES,
)
"""All ignored flags; a value follows each that is no switch."""
