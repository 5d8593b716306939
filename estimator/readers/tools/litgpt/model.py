"""The model of a LitGPT job: a checkpoint folder, a name in its list, or a ``Config`` of its own.

Read from ``config.py`` (defaults), ``model.py`` and ``utils.py`` (``extend_checkpoint_dir``) of LitGPT 0.5.13.
"""

import os
from pathlib import Path, PurePath

from ...program.program import Program
from ...source.settings import LayeredSettings, Setting
from ..shared.own_loop import config_of_model, folder_id

_CONFIG_FILE = "model_config.yaml"


def read_litgpt_model(program: Program, settings: LayeredSettings, *, positional: str | None) -> None:
    """Record ``model.id``, and ``model.config`` where LitGPT unties the head.

    Args:
        program: the program.
        settings: its settings.
        positional: the model on the command line without a flag.
    """
    if (written := settings.find(*settings.names("model_config."))) is not None:
        _warn_of_config(program, written.origin)
        return
    setting = settings.find("checkpoint_dir", "model_name", "initial_checkpoint_dir", "repo_id")
    if positional is not None:
        setting = Setting(value=positional, origin=f"{positional} on the command line")
    if setting is None:
        return
    text = str(setting.value).rstrip("/")
    folder = _checkpoint_folder(program, text)
    if folder is not None and (found := folder_id(program.filesystem, setting.with_value(folder))) is not None:
        name = found
    elif folder is not None:
        _warn_of_config(program, f"{setting.origin}: {_CONFIG_FILE}")
        return
    else:
        name = "/".join(PurePath(text).parts[-2:]) if "/" in text else text
    program.findings.record_from(setting, "model.id", name)
    _untie(program, settings, setting.with_value(name))


def _warn_of_config(program: Program, origin: str) -> None:
    sentence = f"{origin}: vramtop does not read LitGPT's own description of a model; give model.config."
    program.findings.warn(sentence, unless="model.id")


def _checkpoint_folder(program: Program, text: str) -> Path | None:
    """Return the folder as LitGPT finds it: as it is written, or below ``checkpoints``."""
    for name in (text, f"checkpoints/{text}"):
        folder = program.filesystem.resolve(name)
        if os.access(folder / _CONFIG_FILE, os.R_OK) or os.access(folder / "config.json", os.R_OK):
            return folder
    return None


def _untie(program: Program, settings: LayeredSettings, model: Setting) -> None:
    """Record a config without a tied head: LitGPT's ``GPT`` has a head of its own, whatever the checkpoint ties.

    A config that does not say so is of a model that transformers ties; Falcon's and Gemma's do not.
    """
    if settings.is_true("train.tie_embeddings"):
        return
    config = config_of_model(program, model)
    if config is not None and config.get("tie_word_embeddings", True):
        untied = {**config, "tie_word_embeddings": False}
        program.findings.infer("model.config", untied, f"{model.origin}; LitGPT unties the head")
