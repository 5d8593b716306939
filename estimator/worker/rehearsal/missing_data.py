"""Replaces data sets that are not on this machine by synthetic items, or lets the program's failure name them.

Columns of a data set on the hub are not known without it. It gets those of the usual ones that the program's source
names; what is in them has the sizes that the user gives. Images of torchvision's known sets have their own sizes.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..replaced import replaced
from .fake_gpu import is_own, program_lines
from .imports import after_import
from .synthetic_sets import mark, watch_sets

_WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "with", "as", "this", "from")
_TEXTS = (
    "text", "content", "document", "article", "sentence", "sentence1", "sentence2", "premise", "hypothesis", "question",
    "context", "answer", "query", "instruction", "input", "output", "response", "summary", "highlights", "dialogue",
    "code", "prompt", "completion", "chosen", "rejected", "title", "review", "caption", "transcription", "problem",
    "solution", "abstract", "passage",
)  # fmt: skip
_IMAGES = ("image", "images", "img", "conditioning_image", "original_image", "edited_image")
_OTHERS = ("messages", "conversations", "answers", "label", "fine_label", "score", "tokens", "ner_tags", "idx", "audio",
           *_IMAGES)  # fmt: skip
_SENTENCES = ("sentence", "sentence1", "sentence2", "premise", "hypothesis")
"""Texts with an eighth of the words where there are several: tokenizers keep what they cut of a pair, once for each
part of the other text."""
_PREFERENCES = ("prompt", "chosen", "rejected")
_TURN = "Human:"
"""What begins a turn in the texts of Anthropic's hh-rlhf and those made like it."""
_OF_TRAINERS = {
    **dict.fromkeys(("DPOTrainer", "ORPOTrainer", "CPOTrainer", "RewardTrainer"), _PREFERENCES),
    **dict.fromkeys(("GRPOTrainer", "RLOOTrainer", "PPOTrainer", "OnlineDPOTrainer"), ("prompt",)),
    "KTOTrainer": ("prompt", "completion", "label"),
}
"""Columns of a data set of which the source names none (TRL 1.16, docs/source/dataset_formats.md)."""
_LIBRARIES = {"trl", "transformers", "datasets", "peft", "accelerate", "diffusers"}
"""Packages whose source knows columns of all data sets, also where they lie beside the program."""
_OF_BUILDERS = {"imagefolder": ("image", "label"), "audiofolder": ("audio", "label"), "text": ("text",)}
_OF_GLUE = {
    **dict.fromkeys(("cola", "sst2"), ("sentence",)),
    **dict.fromkeys(("mrpc", "stsb", "rte", "wnli"), ("sentence1", "sentence2")),
    **dict.fromkeys(("mnli", "ax"), ("premise", "hypothesis")),
    "qqp": ("question1", "question2"),
    "qnli": ("question", "sentence"),
}
"""Columns of GLUE's tasks, of which one script names those of all."""
_SPLITS = ("train", "validation", "test")
_OTHER_SPLITS = ("validation_matched", "validation_mismatched", "test_matched", "test_mismatched", "dev", "valid",
                 "eval", "train_sft", "test_sft", "train_prefs", "test_prefs", "unsupervised")  # fmt: skip
_LABELLED = ("label", "labels", "label_ids")
_LABELS = 10
_MOST_SOURCE = 2**20
_MOST_SOUND = 256 * 2**20
"""Bytes of recordings in a data set: what a program makes of them takes up to twenty times as much on the host."""
_CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml")
_DIVIDE = frozenset(("split", "rsplit", "partition", "rpartition", "index", "rindex", "find", "rfind"))
_LEAST_MARK = 3
_VALUE = re.compile(r"""(?:[:=\[,]|^\s*-)\s*["']?([A-Za-z_]\w*)["']?\s*(?=[,\]}#]|$)""", re.MULTILINE)
"""A value of one word in YAML, JSON or TOML."""
_JOINED = re.compile(r"[=+,:;\[\]]")
_HERE = str(Path(__file__).parent)
_SAMPLES_PER_SECOND = 16_000
_MNIST, _CIFAR = (28, 28, "L", 60_000, 10_000), (32, 32, "RGB", 50_000, 10_000)
_SETS: dict[str, tuple[int, tuple[int, int, str, int, int] | None]] = {
    "MNIST": (10, _MNIST), "FashionMNIST": (10, _MNIST), "KMNIST": (10, _MNIST), "CIFAR10": (10, _CIFAR),
    "CIFAR100": (100, _CIFAR), "SVHN": (10, (32, 32, "RGB", 73_257, 26_032)),
    "STL10": (10, (96, 96, "RGB", 5_000, 8_000)), "EuroSAT": (10, (64, 64, "RGB", 27_000, 27_000)),
    "PCAM": (2, (96, 96, "RGB", 262_144, 32_768)), "ImageFolder": (1000, None), "ImageNet": (1000, None),
    "Flowers102": (102, None), "Food101": (101, None), "OxfordIIITPet": (37, None), "StanfordCars": (196, None),
    "FGVCAircraft": (100, None), "Caltech101": (101, None), "DTD": (47, None), "GTSRB": (43, None),
    "SUN397": (397, None), "Places365": (365, None), "Imagenette": (10, None),
}  # fmt: skip
"""torchvision's sets of images with a class each: classes, and width, height, mode, and items for training and test."""


class MissingData:
    """Watches what loads data.

    Args:
        sizes: ``items``, ``words``, ``width``, ``height``, ``seconds`` and ``columns`` of synthetic items; None: data
            that is not there ends the program.
        warn: gets a sentence about each stand-in.
    """

    def __init__(self, sizes: dict[str, Any] | None, warn: Callable[[str], None]) -> None:
        self.sizes = sizes
        self._missing: list[tuple[BaseException, str]] = []
        """The exceptions of data that was not there, with its name and the line that asked for it."""
        self._has_stood_in = self._has_dropped_all = False
        self._warn = warn

    def watch(self) -> None:
        """Begin."""
        after_import("datasets.load", self._change_datasets)
        if self.sizes is not None:
            watch_sets(self.sizes["items"], functools.partial(setattr, self, "_has_dropped_all", True))
        after_import("evaluate.loading", functools.partial(_change, ("load",), self._measuring))
        after_import("torchvision.datasets", self._change_torchvision)

    def of(self, error: BaseException | None) -> str | None:
        """Return the data that a failure of the program is about: ``imdb, at train.py:3``; None: it is about others."""
        return next((what for each in causes(error) for known, what in self._missing if known is each), None)

    def hint(self, error: BaseException) -> str:
        """Return what to try where a program failed for want of items, or nothing."""
        found_none = self._has_stood_in and re.search("StopIteration|num_samples=0", repr(error))
        if self.sizes and (self._has_dropped_all or found_none):
            words = max(1, self.sizes["words"] // 8)
            return f"; it dropped all synthetic items, perhaps as too long: try fewer words, as in words={words}"
        of_items = isinstance(error, (LookupError, ValueError, TypeError, AssertionError))
        if self._has_stood_in and of_items and "keyword argument" not in str(error):  # those are of other versions
            return "; synthetic items may lack what it looks for: name their columns, or give it some real items"
        return ""

    def _found(self, name: str, load: Callable[[], Any]) -> tuple[Any, dict[str, Any] | None]:
        """Return what is loaded; or, where that fails, the sizes of what stands in, if anything may.

        A failure of data that is there, in another version, is no want of data.
        """
        try:
            return load(), None
        except TypeError:  # arguments that another version of the library takes
            raise
        except Exception as error:
            if self.sizes is None:
                if not Path(name).exists():
                    self._missing.append((error, f"{name}, at {_line()}"))
                raise
        return None, self.sizes

    def _stands_in(self, name: str, what: str) -> None:
        self._has_stood_in = True
        self._warn(f"{_line()} finds no data ({name}): {what} stand in for it")

    def _change_datasets(self, module: ModuleType) -> None:
        _change(("load_dataset", "load_from_disk"), self._loading, module)
        _change(("load_metric",) if hasattr(module, "load_metric") else (), self._measuring, module)  # before 3.0

    def _loading(self, load: Any) -> Any:
        signature = inspect.signature(load)

        @functools.wraps(load)
        def load_or_make(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            name = str(next(iter(given.values())))
            is_streamed = bool(given.get("streaming"))
            with contextlib.nullcontext() if self.sizes is None else _without_network():
                found, sizes = self._found(name, lambda: load(*args, **kwargs))
            if sizes is None:
                return found
            task = _OF_GLUE.get(str(given.get("name"))) if name.rpartition("/")[2] == "glue" else None
            if task is not None and not sizes["columns"]:
                sizes = {**sizes, "columns": (*task, "label", "idx")}
            return self._dataset(name, sizes, given.get("split"), is_streamed=is_streamed)

        return load_or_make

    def _dataset(self, name: str, sizes: dict[str, Any], split: Any, *, is_streamed: bool) -> Any:
        import datasets

        strings, used, marks = _words_of_program()
        names = sizes["columns"] or _OF_BUILDERS.get(name) or [each for each in _TEXTS + _OTHERS if each in strings]
        names = names or next((own for trainer, own in _OF_TRAINERS.items() if trainer in used), ("text",))
        if strings.isdisjoint(_LABELLED) and any(each.endswith("ForSequenceClassification") for each in used):
            names = [*names, "label"]  # which the Trainer finds by itself
        turns = any(_TURN in each for each in strings)
        short = {each for each in _SENTENCES if each in names}
        fewer = {**sizes, "words": -(-sizes["words"] // 8)} if len(short) > 1 else sizes
        columns = {
            each: _column(each, fewer if each in short else sizes, marks, turns and each in _PREFERENCES)
            for each in names
        }
        if "KTOTrainer" in used and "label" in columns:  # it asks whether each is True
            columns["label"] = (True, None)
        sound = sum(len(each["bytes"]) for each, _ in columns.values() if isinstance(each, dict) and "bytes" in each)
        count = min(sizes["items"], max(1, _MOST_SOUND // max(1, sound)))
        items = {each: [_numbered(value, at) for at in range(count)] for each, (value, _) in columns.items()}
        made = datasets.Dataset.from_dict(items)
        for each, (_, feature) in columns.items():
            made = made if feature is None else made.cast_column(each, feature)
        counts = {(fewer if each in short else sizes)["words"] for each in names if _is_text(each)}
        of_text = f" (texts of {' and '.join(f'{each:,}' for each in sorted(counts))} words)" if counts else ""
        self._stands_in(name, f"{count:,} items with {', '.join(names)}{of_text}")
        made = made.to_iterable_dataset() if is_streamed else made
        mark(made)
        if isinstance(split, (list, tuple)):
            return [made for _ in split]
        if split is not None:
            return made
        splits = [*_SPLITS, *(each for each in _OTHER_SPLITS if each in strings)]
        return (datasets.IterableDatasetDict if is_streamed else datasets.DatasetDict)(dict.fromkeys(splits, made))

    def _measuring(self, load: Any) -> Any:
        @functools.wraps(load)
        def load_or_make(path: str, *args: Any, **kwargs: Any) -> Any:
            found, sizes = self._found(f"the metric {path}", lambda: load(path, *args, **kwargs))
            if sizes is None:
                return found
            self._stands_in(f"the metric {path}", "zeros")
            return _Metric()

        return load_or_make

    def _change_torchvision(self, module: ModuleType) -> None:
        kinds = {name: kind for name in _SETS if (kind := getattr(module, name, None)) is not None}
        starts = {name: self._opening(kind, *_SETS[name]) for name, kind in kinds.items()}
        for name, start in starts.items():  # not before all are made: CIFAR100's is CIFAR10's
            kinds[name].__init__ = start

    def _opening(self, kind: Any, classes: int, known: Any) -> Any:
        start = kind.__init__
        signature = inspect.signature(start)

        @functools.wraps(start)
        def open_or_make(dataset: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(dataset, *args, **kwargs).arguments
            given = {**given, **given.pop("kwargs", {})}
            if self.sizes is not None and "download" in given:
                kwargs, args = {name: value for name, value in list(given.items())[1:] if name != "download"}, ()
            name = f"torchvision's {kind.__name__} in {given.get('root')}"
            _, sizes = self._found(name, lambda: start(dataset, *args, **kwargs))
            if sizes is not None:
                own = sizes["width"], sizes["height"], "RGB", sizes["items"], sizes["items"]
                _fill(dataset, kind, given, classes, known or own)
                if given.get("download"):
                    with contextlib.suppress(OSError):  # programs save what they make of the images beside them
                        Path(given["root"]).mkdir(parents=True, exist_ok=True)
                width, height = dataset.picture.size
                self._stands_in(name, f"images of {width} x {height} in {classes:,} classes")

        return open_or_make


class _Metric(dict[str, Any]):
    """A metric, and its result: each figure is 0."""

    def __missing__(self, name: str) -> float:
        return 0.0

    def compute(self, **_: Any) -> _Metric:
        return self

    def add_batch(self, **_: Any) -> None: ...

    add = add_batch


def _change(names: Sequence[str], change: Callable[[Any], Any], module: ModuleType) -> None:
    for name in names:
        setattr(module, name, change(getattr(module, name)))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _fill(dataset: Any, kind: Any, given: dict[str, Any], classes: int, size: tuple[int, int, str, int, int]) -> None:
    """Let a data set have items: all are one image, in classes by turns."""
    from torchvision.datasets import VisionDataset

    is_training = given.get("train", given.get("split", "train") in ("train", "trainval"))
    width, height, mode, count, count_of_test = size
    options = {name: given.get(name) for name in ("transforms", "transform", "target_transform")}
    VisionDataset.__init__(dataset, given.get("root", "."), **options)
    dataset.picture = _picture(mode, width, height)
    dataset.classes = [str(number) for number in range(classes)]
    if not isinstance(getattr(kind, "class_to_idx", None), property):  # as MNIST's is, which follows the classes
        dataset.class_to_idx = {name: at for at, name in enumerate(dataset.classes)}
    dataset.targets = dataset.labels = [at % classes for at in range(count if is_training else count_of_test)]
    _fill_arrays(dataset, kind.__mro__, (height, width))
    dataset.samples = dataset.imgs = [("", target) for target in dataset.targets]
    dataset.train = is_training

    def item(self_: Any, index: int) -> Any:
        picture, target = self_.picture.copy(), self_.targets[index]
        return self_.transforms(picture, target) if self_.transforms is not None else (picture, target)

    methods = {"__getitem__": item, "__len__": lambda self_: len(self_.targets), "__module__": kind.__module__}
    dataset.__class__ = _kept_kind(kind, methods)


def _picture(mode: str, width: int, height: int) -> Any:
    """Return a picture from black to white: programs divide by the deviation of theirs."""
    from PIL import Image

    return Image.linear_gradient("L").resize((width, height)).convert(mode)


def _fill_arrays(dataset: Any, kinds: tuple[Any, ...], size: tuple[int, int]) -> None:
    """Give a data set what programs read instead of its items: all images in one array, and their classes."""
    import numpy

    names, count = {kind.__name__ for kind in kinds}, len(dataset.targets)
    if "MNIST" in names:
        dataset.targets = torch.tensor(dataset.targets)
        dataset.data = torch.zeros((count, *size), dtype=torch.uint8)
    elif "CIFAR10" in names:
        dataset.data = numpy.zeros((count, *size, 3), numpy.uint8)
    elif names & {"SVHN", "STL10"}:
        dataset.labels = numpy.array(dataset.targets)
        dataset.data = numpy.zeros((count, 3, *size), numpy.uint8)


def _kept_kind(kind: Any, methods: dict[str, Any]) -> Any:
    """Return a class of such data sets that workers of data loaders find by its name."""
    name = f"Synthetic{kind.__name__}"
    module = sys.modules[kind.__module__]
    if not hasattr(module, name):
        setattr(module, name, type(name, (kind,), methods))
    return getattr(module, name)


def _line() -> str:
    first, own = program_lines()
    return own or first


def _without_network() -> Any:
    """Let only data load that is on this machine: hubs' libraries then fail at once."""
    import datasets.config
    import huggingface_hub.constants

    name = "HF_HUB_OFFLINE" if hasattr(datasets.config, "HF_HUB_OFFLINE") else "HF_DATASETS_OFFLINE"  # before 2.21
    return replaced((datasets.config, name, True), (huggingface_hub.constants, "HF_HUB_OFFLINE", True))


def _words_of_program() -> tuple[set[str], set[str], list[str]]:
    """Return the strings and names in the source of the program's modules and of its calling frames.

    The list has the strings at which it divides texts, as ``answer.split("####")`` does.
    """
    strings, names, marks = set(_words_of_line()), set(), dict[str, None]()
    for file in {*_calling_files(), *_own_files()}:
        source = Path(file)
        if source.is_file() and source.stat().st_size <= _MOST_SOURCE:
            try:
                tree = ast.parse(source.read_bytes())
            except (SyntaxError, ValueError):
                continue
            set_to: dict[str, ast.expr] = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    strings.add(node.value)
                elif isinstance(node, (ast.Name, ast.Attribute)):
                    names.add(node.id if isinstance(node, ast.Name) else node.attr)
                elif isinstance(node, ast.Assign):
                    set_to.update((ast.unparse(each), node.value) for each in node.targets)
                elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _DIVIDE and node.args:
                    at = set_to.get(ast.unparse(node.args[0]), node.args[0])
                    if isinstance(at, ast.Constant) and len(str(at.value)) >= _LEAST_MARK:
                        marks[str(at.value)] = None
    return strings, names, [*marks]


def _words_of_line() -> Iterator[str]:
    """Yield the words of the command line, also joined ones, and the values in configurations that it names."""
    for word in sys.argv:
        yield from _JOINED.split(word)
        file = Path(word.rpartition("=")[2])
        if file.suffix in _CONFIGURATIONS and file.is_file() and file.stat().st_size <= _MOST_SOURCE:
            yield from _VALUE.findall(file.read_text(encoding="utf-8", errors="replace"))


def _calling_files() -> Iterator[str]:
    frame: Any = sys._getframe(1)
    while frame is not None:
        name, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if not file.startswith(_HERE) and name.partition(".")[0] not in ("datasets", "runpy"):
            yield file
        frame = frame.f_back


def _own_files() -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and is_own(file, sys.argv[0]) and name.partition(".")[0] not in _LIBRARIES:
            yield file


def _is_text(name: str) -> bool:
    return name not in _OTHERS or name in ("messages", "conversations", "tokens")


def _column(name: str, sizes: dict[str, Any], marks: Sequence[str], in_turns: bool) -> tuple[Any, Any]:
    """Return the value of a column in each item, and its feature; None: that of the value."""
    import datasets

    words = random.Random(0).choices(_WORDS, k=sizes["words"])  # noqa: S311 - no secret
    label = datasets.ClassLabel(num_classes=_LABELS)
    if name in ("messages", "conversations"):
        who, what, user, model = ("role", "content", "user", "assistant")
        if name == "conversations":
            who, what, user, model = ("from", "value", "human", "gpt")
        half = len(words) // 2
        return [{who: user, what: " ".join(words[:half])}, {who: model, what: " ".join(words[half:])}], None
    others = {
        "label": (0, label), "fine_label": (0, label), "idx": (0, None), "score": (0.5, None), "tokens": (words, None),
        "answers": ({"text": [words[0]], "answer_start": [0]}, None),
    }  # fmt: skip
    if name in others:
        return others[name]
    if name == "ner_tags":
        return [0] * len(words), datasets.Sequence(label)
    if name in _IMAGES:
        file = io.BytesIO()
        _picture("RGB", sizes["width"], sizes["height"]).save(file, "PNG")
        picture = {"bytes": file.getvalue(), "path": None}
        return (picture, datasets.Image()) if name != "images" else ([picture], datasets.Sequence(datasets.Image()))
    if name == "audio":
        return {"bytes": _wav(sizes["seconds"]), "path": None}, datasets.Audio(_SAMPLES_PER_SECOND)
    if in_turns:
        words.insert(len(words) // 2, "\n\nAssistant:")
        words.insert(0, "\n\nHuman:")
    return " ".join((*words, *(f"{each} 7" for each in marks))), None


def _numbered(value: Any, number: int) -> Any:
    """Return a text that is another in each item, as some samplers put none into a batch twice, or a turn of truth."""
    if isinstance(value, bool):
        return number % 2 == 0
    first, _, rest = value.partition(" ") if isinstance(value, str) else (value, "", "")
    return f"{first} {number} {rest.partition(' ')[2]}" if rest else value


def _wav(seconds: int) -> bytes:
    """Return a recording that is a sample shorter: programs drop those that are not below their longest."""
    import wave

    file = io.BytesIO()
    with wave.Wave_write(file) as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(_SAMPLES_PER_SECOND)
        sound.writeframes(bytes(2 * (seconds * _SAMPLES_PER_SECOND - 1)))
    return file.getvalue()
