"""Diffusion models by name and on disk, and how their families are trained."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..common.errors import CannotTellError
from ..common.paths import expand_user, is_folder
from ..job.settings import ModelSpec
from ..model.find_config import PIPELINE, cached_snapshots, part_folders, read_config

_RANK = 4
"""Rank of the adapters of every example of diffusers."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network of a diffusion model."""

    kind: str = msgspec.field(name="class")
    """Class in diffusers or transformers that builds the part."""
    config: dict[str, Any] = {}
    """The fields of its config that differ from the defaults of the class; those of its file where it is on disk."""
    place: tuple[str, str] | None = None
    """Where its config.json is on disk: path or hub id of the pipeline, and folder in it."""


class DiffusionModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A diffusion model that is known by name, or whose configs are on disk."""

    id: str
    """Hub id, or path of its folder."""
    aliases: tuple[str, ...] = ()
    family: str
    """Name of its family."""
    parameters: int | None = None
    """Published parameter count of the part that is trained; None: it is a checkpoint of somebody's own."""
    size: tuple[int, int]
    """Height and width of its training images, in pixels, unless others are given."""
    vae: str | None = None
    """Name of the part that makes latents of images; None: latents are made before the training."""
    encoders: tuple[str, ...] = ()
    """Names of the parts that read the prompt."""
    trained: Part
    """The network that is trained."""
    own_parts: dict[str, Part] = {}
    """Parts that are its own, by name; other models share the others."""

    def part(self, name: str) -> Part:
        """Return one of its parts by name."""
        return self.own_parts.get(name) or _file().part[name]

    @property
    def label(self) -> str:
        """The last part of its id."""
        return self.id.rpartition("/")[2]

    @property
    def spec(self) -> ModelSpec:
        """The model of its job."""
        config = {"model_type": self.trained.kind, "torch_dtype": "float32"}
        return ModelSpec(id=self.id, task="image-to-image", config=config)

    def loop(self, *, adapts: bool) -> str:
        """Return the name of the script whose loop trains it, as diffusers calls it."""
        family = diffusion_families()[self.family]
        return f"diffusers' {family.adapters if adapts else family.whole}"

    @property
    def usual(self) -> Mapping[str, Any]:
        """Settings of its job where nothing states them, by dotted key."""
        family = diffusion_families()[self.family]
        return {
            "training.precision": f"{family.precision}-mixed",
            "lora.rank": _RANK,
            "lora.targets": list(family.targets),
        }


class Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training scripts of diffusion models that are trained alike."""

    pipelines: tuple[str, ...]
    """Classes of their pipelines in diffusers."""
    adapters: str
    """Script that trains adapters."""
    whole: str
    """Script that trains all parameters."""
    precision: str
    """Mixed precision of its documented command."""
    targets: tuple[str, ...]
    """Layers that get adapters."""
    lengths: tuple[int, ...] = ()
    """Tokens of a prompt, for each text encoder."""
    encode: tuple[str, ...]
    """Lines that make embeddings of the prompt."""
    predict: tuple[str, ...]
    """Lines of the script that run the model on noisy latents."""
    flows: bool = True
    """It is trained to match a flow, rather than to tell the noise."""
    held: bool = False
    """The text encoders stay on the GPU where adapters are trained: each example has a prompt of its own."""
    held_whole: bool = False
    """Latents and embeddings are made in each step where all parameters are trained."""
    wide_vae: bool = True
    """The VAE computes in fp32."""
    latents: str = 'vae.encode(step["images"].to(vae.dtype)).latent_dist.sample()'
    """Expression of the latents."""
    wraps: bool = False
    """Its class takes no adapters (``add_adapter``): peft's model wraps it."""
    channels: int = 16
    """Channels of what the trained network reads; one that fills gaps in images reads more."""
    multiple: int = 16
    """Pixels of which a side is a multiple."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    part: dict[str, Part]
    family: dict[str, Family]
    model: tuple[DiffusionModel, ...]


@functools.cache
def _file() -> _File:
    return msgspec.toml.decode(Path(__file__).with_name("diffusion_models.toml").read_bytes(), type=_File)


def diffusion_families() -> Mapping[str, Family]:
    """Return the families, by name."""
    return _file().family


def diffusion_models() -> tuple[DiffusionModel, ...]:
    """Return every diffusion model that is known by name."""
    return _file().model


def find_diffusion_model(name: str) -> DiffusionModel | None:
    """Return the model for a name: hub id, its last part, or another name of it, in any case, blanks for dashes."""
    return _by_name().get(name.rstrip("/").casefold().replace(" ", "-"))


@functools.cache
def _by_name() -> dict[str, DiffusionModel]:
    return {word.casefold(): model for model in diffusion_models() for word in (model.id, model.label, *model.aliases)}


def read_pipeline(name: str, environ: Mapping[str, str]) -> DiffusionModel | None:
    """Return the model of a pipeline that diffusers saved, from its configs on disk; None: there is none of that name.

    Args:
        name: of a folder with a model_index.json, or hub id of one in the Hugging Face cache.
        environ: environment that says where the cache is.

    Raises:
        InputError: one of its files cannot be read.
        CannotTellError: no script is known for pipelines of its class.
    """
    folder = expand_user(name)
    places = (
        [(folder, str(folder.resolve()))] if is_folder(folder) else [(e, name) for e in cached_snapshots(name, environ)]
    )
    found = next(((each, place) for each, place in places if (each / PIPELINE).is_file()), None)
    if found is None:
        return None
    folder, place = found
    index = read_config(folder / PIPELINE)
    pipeline = str(index.get("_class_name"))
    family = next((key for key, each in diffusion_families().items() if pipeline in each.pipelines), None)
    parts = dict(_parts(folder, place, index))
    trained = parts.pop("unet", None) or parts.pop("transformer", None)
    of_family = [each for each in diffusion_models() if each.family == family]
    encoders = tuple(sorted(each for each in parts if each.startswith("text_encoder")))
    known = of_family[0] if of_family else None
    if (
        known is None
        or trained is None
        or "transformer_2" in parts
        or (known.encoders and len(encoders) != len(known.encoders))
        or trained.config.get("in_channels") not in (None, diffusion_families()[known.family].channels)
    ):
        raise CannotTellError(
            f"{name} is a pipeline of diffusers ({pipeline}) for whose training no script is known; vramtop rehearse "
            "-- python train.py runs your own script without a GPU and predicts its memory"
        )
    side = trained.config.get("sample_size")
    has_unet = known.trained.kind.startswith("UNet")
    return DiffusionModel(
        id=place,
        family=known.family,
        size=(side * 8, side * 8) if has_unet and isinstance(side, int) else known.size,
        vae="vae" if known.vae is not None else None,
        encoders=encoders if known.encoders else (),
        trained=trained,
        own_parts=parts,
    )


def _parts(folder: Path, place: str, index: Mapping[str, Any]) -> Iterator[tuple[str, Part]]:
    """Yield the networks of a pipeline."""
    for name in part_folders(index):
        config = read_config(folder / name / "config.json")
        yield name, Part(kind=str(index[name][1]), config=config, place=(place, name))
