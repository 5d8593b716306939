"""Training scripts of diffusion models: the examples of diffusers in short.

Sources: the scripts that ``diffusion_models.toml`` names, examples/text_to_image and examples/dreambooth of diffusers
0.42, with their defaults. A script of adapters freezes the weights in the type of the computation; one that trains all
of them keeps them in fp32 under autocast.
"""

import itertools
from collections.abc import Iterable, Iterator

from ..common.errors import InputError
from ..job.job import Job
from ..model.find_config import resolve_model
from .diffusion_models import DiffusionModel, Part, diffusion_families
from .loop_script import LoopScript
from .named_models import InputSizes
from .training_script import How, literal, not_written

_FRAMES = 81
"""Frames of a video of Wan, where nobody says how many."""


def diffusion_script(
    job: Job,
    model: DiffusionModel,
    *,
    sizes: InputSizes | None = None,
    how: How = How(),  # noqa: B008 - frozen
) -> str:
    """Return the script.

    Args:
        job: a job that trains the model.
        model: the model.
        sizes: of its images or videos; None: those of the model.
        how: choices of how it is written and run.

    Raises:
        InputError: the model has no such input.
        CannotTellError: no such script stands for the job; the sentence names the setting.
    """
    return _DiffusionScript(job, model, sizes or InputSizes(), how).text()


def diffusion_words(model: DiffusionModel, sizes: InputSizes) -> str:
    """Return one example in words, such as ``1 image of 512 x 512 pixels``."""
    height, width = sizes.height or model.size[0], sizes.width or model.size[1]
    what = f"{sizes.frames or _FRAMES} frames" if model.family == "wan" else "1 image"
    return f"{what} of {height} x {width} pixels"


class _DiffusionScript(LoopScript):
    places = frozenset(
        f"lora.{key}" for key in ("rank", "targets", "autocast", "dropout", "quantization", "kbit_preparation")
    ) | {"lora", "training.activation_checkpointing", "parallel.data_shard"}
    strategies = ("fsdp2",)

    def __init__(self, job: Job, model: DiffusionModel, sizes: InputSizes, how: How) -> None:
        self._named, self._family = model, diffusion_families()[model.family]
        super().__init__(job, resolve_model(job.model), how)
        self._height, self._width = sizes.height or model.size[0], sizes.width or model.size[1]
        self._frames = sizes.frames or _FRAMES
        name, multiple, is_video = model.label, self._family.multiple, model.family == "wan"
        if self._height % multiple or self._width % multiple:
            raise InputError(f"{name} takes images whose sides are multiples of {multiple} pixels")
        if (sizes.images or 1) > 1 or sizes.seconds or sizes.channels_last:
            raise InputError(f"{name} is given one image or video in each example; --batch N gives it N of them")
        if sizes.frames and not is_video:
            raise InputError(f"--frames means nothing for {name}, which makes images")
        if is_video and self._frames % 4 != 1:
            raise InputError(f"{name} takes one frame and multiples of four more, such as {_FRAMES}")
        if self._job.training.activation_checkpointing == "selective":
            raise not_written("diffusers checkpoints whole blocks")
        if self._job.lora is None and self._job.precision.half_weights:
            raise not_written(
                "the examples of diffusers keep weights that are trained in fp32; --bf16 computes in bf16"
            )
        if self._job.strategy.fsdp and self._job.lora is not None:
            raise not_written(
                "adapters keep another type than the weights, which FSDP2 does not shard together; --ddp copies both"
            )
        self._vae = model.part(model.vae) if model.vae is not None else None
        self._encoders = {
            f"text_encoder{f'_{at}' if at > 1 else ''}": (model.part(each), f"tokens{f'_{at}' if at > 1 else ''}")
            for at, each in enumerate(model.encoders, 1)
        }

    @property
    def _held(self) -> bool:
        return self._family.held if self._job.lora is not None else self._family.held_whole

    @property
    def _trained(self) -> str:
        """Expression of the trained parameters; a list of them would keep what they were before they are sharded."""
        return "trained" if self._job.lora is not None else "model.parameters()"

    @property
    def _caches(self) -> bool:
        """Latents are made before the training."""
        return self._vae is None or (self._named.family == "sdxl" and self._job.lora is None)

    def _parts(self) -> Iterable[Iterable[str]]:
        placed = [itertools.chain(self._frozen(), self._adapted()), self._before()]
        if self._job.quantization is not None:  # nobody can afford the text encoders beside it
            placed = [self._frozen(), self._before(), self._adapted()]
        return self._start(), self._networks(), *placed, self._loader(), self._loop()

    def _start(self) -> Iterator[str]:
        self._imports.add("accelerate.Accelerator")
        job = self._job
        mixed = job.precision.name.partition("-")[0] if job.precision.dtype != "float32" else "no"
        cpu = ", cpu=True" if self._how.on_cpu else ""
        accumulated = job.training.gradient_accumulation
        steps = f", gradient_accumulation_steps={accumulated}" if accumulated > 1 else ""
        comment = self._comment("training.precision")
        sharded = ""
        if job.strategy.fsdp:
            self._imports.add("accelerate.FullyShardedDataParallelPlugin")
            yield 'blocks = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")'
            sharded = ", fsdp_plugin=blocks"
        yield f'accelerator = Accelerator(mixed_precision="{mixed}"{steps}{sharded}{cpu}){comment}'
        yield f"device, weight_dtype = accelerator.device, torch.{job.precision.dtype}"

    def _networks(self) -> Iterator[str]:
        yield from self._network("model", self._named.trained)
        if self._vae is not None:
            yield from self._network("vae", self._vae)
        for name, (part, _) in self._encoders.items():
            self._imports.add(f"transformers.{part.kind}")
            if part.place is not None:
                pipeline, folder = map(literal, part.place)
                yield f"{name}_config = {part.kind}.config_class.from_pretrained({pipeline}, subfolder={folder})"
                yield f"{name} = {part.kind}({name}_config)"
                continue
            yield f"{name} = {part.kind}("
            yield f"    {part.kind}.config_class("
            yield from (f"        {key}={literal(value, 8)}," for key, value in part.config.items())
            yield "    )"
            yield ")"

    def _network(self, name: str, part: Part) -> Iterator[str]:
        self._imports.add(f"diffusers.{part.kind}")
        if part.place is not None:
            pipeline, folder = map(literal, part.place)
            yield f"{name}_config = {part.kind}.load_config({pipeline}, subfolder={folder})"
            yield f"{name} = {part.kind}.from_config({name}_config)"
            return
        yield f"{name} = {part.kind}("
        yield from (f"    {key}={literal(value, 4)}," for key, value in part.config.items())
        yield ")"

    def _frozen(self) -> Iterator[str]:
        job = self._job
        place = f"is as in {self._named.loop(adapts=job.lora is not None)}"
        yield f"# what is where, and in which type, {place}{', but for the order' if job.quantization else ''}"
        frozen = ["vae"] if self._vae is not None else []
        frozen += list(self._encoders)
        for each in frozen + (["model"] if job.lora is not None else []):
            yield f"{each}.requires_grad_(False)"
        if self._vae is not None:
            yield f"vae.to(device, dtype={'torch.float32' if self._family.wide_vae else 'weight_dtype'})"
        if job.lora is not None and job.quantization is None:
            yield "model.to(device, dtype=weight_dtype)"
        for name in self._encoders:
            yield f"{name}.to(device, dtype=weight_dtype)"

    def _adapted(self) -> Iterator[str]:
        job, lora, family = self._job, self._job.lora, self._family
        if job.quantization is not None:
            yield "model.to(dtype=weight_dtype)"
            yield from self._quantized()
            if lora is not None and lora.kbit_preparation:
                self._imports.add("peft.prepare_model_for_kbit_training")
                yield "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)"
        if job.training.activation_checkpointing == "full":
            yield "model.enable_gradient_checkpointing()"
        if lora is not None:
            self._imports.add("peft.LoraConfig")
            targets = lora.targets if lora.targets == "all-linear" else list(lora.targets)
            yield "adapters = LoraConfig("
            yield f"    r={lora.rank},{self._comment('lora.rank')}"
            yield f"    lora_alpha={lora.rank},"
            if job.adapters.dropout:
                yield f"    lora_dropout={job.adapters.dropout},"
            yield f"    target_modules={literal(targets, 4)},{self._comment('lora.targets')}"
            yield ")"
            if family.wraps:
                self._imports.add("peft.get_peft_model")
            yield "model = get_peft_model(model, adapters)" if family.wraps else "model.add_adapter(adapters)"
            if job.precision.dtype == "float16":
                self._imports.add("diffusers.training_utils.cast_training_params")
                yield "cast_training_params(model, dtype=torch.float32)"
        else:
            yield "model.train()"
        if lora is not None:
            yield "trained = [each for each in model.parameters() if each.requires_grad]"
        usual = f"torch.optim.AdamW({self._trained}, lr=1e-4, weight_decay=1e-2)"
        comment = "" if self._has_optimizer else "  # not set: the default of the script"
        yield f"optimizer = {self._optimizer_of(self._trained, usual)}{comment}"

    def _layers_to_quantize(self) -> Iterator[str]:
        yield "kept = {*(model._keep_in_fp32_modules or ())}"
        yield "for name, layer in list(model.named_modules()):"
        yield "    if isinstance(layer, torch.nn.Linear) and not {*name.split('.')} & kept:"
        yield "        weight = layer.weight.data"

    def _device(self) -> str:
        return "device"

    def _before(self) -> Iterator[str]:
        """Yield what is done once: the embeddings of the prompts, after which their encoders are not needed."""
        if self._held:
            return
        prompts = self._job.training.micro_batch if self._family.held else 1
        for (_, tokens), length in zip(self._encoders.values(), self._family.lengths, strict=True):
            yield f"{tokens} = torch.randint(2, 30000, ({prompts}, {length}), device=device)"
        if self._encoders:
            yield "with torch.no_grad():"
        yield from (f"{'    ' if self._encoders else ''}{line}" for line in self._family.encode)
        if self._encoders:
            gone = [*self._encoders, *(["vae"] if self._caches and self._vae is not None else [])]
            self._imports.add("diffusers.training_utils.free_memory")
            yield f"del {', '.join(gone)}"
            yield "free_memory()"

    def _loader(self) -> Iterator[str]:
        batch = self._job.training.micro_batch
        yield f"batch = {batch}{self._comment('training.micro_batch')}"
        if self._caches:
            frames = f"{(self._frames - 1) // 4 + 1}, " if self._named.family == "wan" else ""
            sizes = InputSizes(height=self._height, width=self._width, frames=self._frames)
            yield f"# latents of {diffusion_words(self._named, sizes)}"
            shape = f"{self._family.channels}, {frames}{self._height // 8}, {self._width // 8}"
            yield f'item = {{"images": torch.randn({shape})}}'
        else:
            yield f'item = {{"images": torch.rand(3, {self._height}, {self._width})}}'
        if self._held:
            for (_, tokens), length in zip(self._encoders.values(), self._family.lengths, strict=True):
                yield f'item["{tokens}"] = torch.randint(2, 30000, ({length},))'
        ranks = self._job.parallel.world_size
        yield f"loader = torch.utils.data.DataLoader([item] * batch * {self._steps * ranks}, batch_size=batch)"
        yield "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
        if not self._family.flows:
            self._imports.add("diffusers.DDPMScheduler")
            yield "scheduler = DDPMScheduler()"

    def _loop(self) -> Iterator[str]:
        family = self._family
        yield "for step in loader:"
        yield "    with accelerator.accumulate(model):"
        for line in self._step():
            yield f"        {line}"
        yield "        accelerator.backward(loss)"
        yield "        if accelerator.sync_gradients:"
        yield f"            accelerator.clip_grad_norm_({self._trained}, 1.0)"
        yield "        optimizer.step()"
        yield "        optimizer.zero_grad()"
        if family.predict and "FluxPipeline" in "".join(family.predict):
            self._imports.add("diffusers.FluxPipeline")

    def _step(self) -> Iterator[str]:
        family = self._family
        if self._caches:
            yield 'latents = step["images"].to(weight_dtype)'
        else:
            yield f"latents = {family.latents}"
            yield "latents = (latents * vae.config.scaling_factor).to(weight_dtype)"
        yield "noise = torch.randn_like(latents)"
        if family.flows:
            yield "sigmas = torch.rand(batch, device=device)"
            yield "timesteps = 1000 * sigmas"
            yield "sigmas = sigmas.to(weight_dtype).view(-1, *[1] * (latents.dim() - 1))"
            yield "noisy = (1.0 - sigmas) * latents + sigmas * noise"
        else:
            yield "timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (batch,), device=device)"
            yield "noisy = scheduler.add_noise(latents, noise, timesteps)"
        if self._held:
            for _, tokens in self._encoders.values():
                yield f'{tokens} = step["{tokens}"]'
            yield from family.encode
        guided = self._named.trained.config.get("guidance_embeds")
        guidance = "torch.ones(batch, device=device)" if guided else "None"
        for line in family.predict:
            yield line.format(height=self._height, width=self._width, guidance=guidance)
        if family.flows:
            yield "target = noise - latents"
            yield "loss = ((prediction.float() - target.float()) ** 2).reshape(batch, -1).mean(1).mean()"
        else:
            yield "loss = torch.nn.functional.mse_loss(prediction.float(), noise.float())"
