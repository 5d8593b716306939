"""The environment variables that vramtop itself reads, in words: for the manual page and the documentation."""

from collections.abc import Mapping

ENVIRONMENT: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER": "GPUs that fit considers, and how they are counted.",
    "VIRTUAL_ENV, CONDA_PREFIX": "Where a Python with torch and transformers is looked for.",
    "HF_HUB_CACHE, HF_HOME": "Where downloaded models are.",
    "VRAMTOP_CONFIG": "The settings file in place of the usual one; /dev/null for none.",
    "VRAMTOP_TABLE_KEY": "A setting, in place of what the settings file says: VRAMTOP_DASHBOARD_INTERVAL is "
    "dashboard.interval (vramtop config lists all).",
    "VRAMTOP_SSH": "The command in place of ssh for --host, such as ssh -F FILE.",
    "VRAMTOP_PROMETHEUS_USER, VRAMTOP_PROMETHEUS_PASSWORD": "User and password of the Prometheus that is read.",
    "VRAMTOP_EXPORT_PASSWORD": "Password that clients of vramtop export need.",
    "VRAMTOP_TORCH_PYTHON": "Of the programs of vramtop measure --suite, set by it: the Python that has torch.",
    "VRAMTOP_POD_GROUP": "Of a training process, set by its manifest: the group of pods that one run consists of.",
    "NO_COLOR, FORCE_COLOR, CLICOLOR, CLICOLOR_FORCE": "Whether the output has colours.",
    "TEXTUAL_THEME": "The theme, in place of that of your settings.",
    "TERM, COLORTERM": "What the terminal can do: how many colours, desktop notifications.",
    "LC_ALL, LC_CTYPE, LANG": "Without UTF-8 everything is drawn in ASCII.",
    "XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_CACHE_HOME": "Where settings, answers and estimates are stored.",
}
"""Meaning by the names of the variables."""
