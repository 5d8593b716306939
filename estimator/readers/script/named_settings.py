"""Settings that a script keeps in names of its module, and lengths that it uses or does not."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...common.records import replace
from ..arguments.table import library, scripts
from ..source.settings import Setting
from .configs import LENGTH_ARGUMENTS
from .follow import OTHER_LENGTHS, Reader
from .notes import Notes
from .operators import as_number
from .values import UNKNOWN, short_text

_LENGTH = re.compile(
    r"(?i)^(?!.*(eval|val_|test|vllm|gen|new_tok|min_|prompt|pre_|rope|window|dim|vocab|prefix|name|target|answer)).*(length|len|seqlen|block_size)$"
)
_GENERATES = re.compile(r"(?i)generate(_(text|answer|response|sample)s?)?|generationconfig|(\w*_)?pipeline|pipe")
"""Whole names of calls that generate text, whose length says nothing about that of the training."""
_TOKENIZES = re.compile(r"(?i)^(tok|tokeni[sz]er?)$|^tokeni[sz]e|encode|apply_chat_template|^processor$")
"""What calls a tokenizer, by its name."""
_FURTHER_LENGTHS = ("cutoff_len", "model_max_length", "sequence_len")
_TARGETS = library("transformers").aliases["target"]
"""Lengths of what a decoder behind an encoder reads."""
_SHORTEST = 16
"""Numbers below are no lengths of sequences."""

SIZES = scripts().aliases["constant"]
"""Names that scripts with a loop of their own keep a setting in; the first that has a number counts."""


def named_settings(tree: ast.Module, reader: Reader) -> dict[str, Setting]:
    """Return numbers that names of lengths are given anywhere, and the sizes of a script with a loop of its own."""
    found: dict[str, Setting] = {}
    bounds = set[str]()
    notes, module = reader.notes, reader.module
    for setting, aliases in SIZES.items() if notes.optimizers and not notes.trainers else ():
        name = next((name for name in aliases if type(module.names.get(name)) is int), "")
        value = module.names.get(name)
        found |= {setting: Setting(value=value, origin=f"{reader.name}: {name} = {value}")} if name else {}
        if setting == "gradient_accumulation_steps":  # batches are those of a DataLoader
            for option in (notes.options.find(alias, uses=False) for alias in aliases):
                if option is not None and type(as_number(option.value)) is int:
                    found[setting] = option
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    elsewhere = {id(each) for node in functions if OTHER_LENGTHS.search(node.name) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and id(node) not in elsewhere:
            name = getattr(node.targets[0] if isinstance(node, ast.Assign) else node.target, "id", "")
            value = module.names.get(name, getattr(node.value, "value", UNKNOWN))
            if name.lower() in (*LENGTH_ARGUMENTS, *_TARGETS) and type(value) is int:
                found[name.lower()] = Setting(value=value, origin=f"{reader.location(node)}: {name}")
        elif isinstance(node, ast.If) and _bounded(node) in {*LENGTH_ARGUMENTS} - notes.options.given.keys():
            sentence = f"if {short_text(node.test)} bounds a length that is not known; the bound is counted."
            notes.doubt(f"{reader.location(node)}: {sentence}", key="training.sequence_length")
            bounds.add(_bounded(node))
    return {name: replace(each, written=each.written and name not in bounds) for name, each in found.items()}


def _bounded(node: ast.If) -> str:
    """Return the name that a condition bounds from above: ``if block_size > 1024: block_size = 1024``; else none."""
    name = getattr(getattr(node.test, "left", None), "id", "")
    is_above = isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Gt)
    targets = (getattr(each, "targets", [None])[0] for each in node.body)
    return name if is_above and any(getattr(each, "id", "") == name for each in targets) else ""


def longer_cuts(notes: Notes, defaults: Mapping[str, Setting], unused: set[str]) -> dict[str, Setting]:
    """Return where calls cut sequences, if the default of that name is shorter; note that there are several lengths.

    Options on the command line that are shorter than what calls cut are added to ``unused``.
    """
    cuts = {name: each for name, each in notes.hints.items() if name in LENGTH_ARGUMENTS and type(each.value) is int}
    options = {name: each for name, each in defaults.items() if _LENGTH.match(name) and type(each.value) is int}
    known = {name: each.value for name, each in options.items()}
    known |= {f"{name} of a call": each.value for name, each in cuts.items()}
    known = {name: value for name, value in known.items() if value >= _SHORTEST}
    if options and len({*known.values()}) > 1:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(known.items())[:4])
        sentence = f"The script has several lengths ({shown}); vramtop does not know which one a step has."
        notes.doubt(sentence, key="training.sequence_length")
    longest = max((each.value for each in cuts.values()), default=0)
    given = options.keys() & notes.options.given.keys() - cuts.keys()
    unused |= {name for name in given if options[name].value < longest}
    both = (cuts.keys() & options.keys()) - notes.options.given.keys()
    return {name: cuts[name] for name in both if cuts[name].value > options[name].value}


def lengths_of_generation(tree: ast.Module) -> set[str]:
    """Return the names of lengths that only calls which generate text read."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [node for node in calls if _GENERATES.fullmatch(ast.unparse(node.func).rpartition(".")[2])]
    inside = {id(each): each for node in found for each in ast.walk(node)}
    read = {name for node in ast.walk(tree) if id(node) not in inside for name in _reads(node)}
    return {name for node in inside.values() for name in _reads(node)} & {*LENGTH_ARGUMENTS} - read


def _reads(node: ast.AST) -> list[str]:
    is_read = isinstance(getattr(node, "ctx", None), ast.Load)
    return [getattr(node, "attr", getattr(node, "id", ""))] if is_read else []


def add_cut(tree: ast.Module, reader: Reader) -> None:
    """Take the length to which the script tells its tokenizers to cut, if nothing else states one."""
    notes = reader.notes
    given = (notes.written, notes.hints, notes.options.declared, *(each.values for each in notes.arguments))
    if any(name in (*LENGTH_ARGUMENTS, *_FURTHER_LENGTHS) for table in given for name in table):
        return
    cuts = [(node, cut) for node in ast.walk(tree) if (cut := _cut_of(node)) is not None]
    names = reader.module.names
    sizes = {
        _most_of_tokenizers(tree)
        if getattr(cut, "attr", "") == "model_max_length"
        else getattr(cut, "value", names.get(getattr(cut, "id", ""), UNKNOWN))
        for _, cut in cuts
    }
    size = sizes.pop() if len(sizes) == 1 else None
    if type(size) is int:
        where = f"{reader.location(cuts[0][0])}: {short_text(cuts[0][0])}"
        notes.hints["max_length"] = Setting(value=size, origin=where)
        notes.doubt(f"{where} is taken for what cuts sequences.", key="training.sequence_length")


def add_cut_of_targets(tree: ast.Module, reader: Reader) -> None:
    """Record to how many tokens targets are cut: ``tokenizer(text_target=..., max_length=128)``, or as ``labels``."""
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    found: list[ast.AST] = [each for each in calls if any(word.arg == "text_target" for word in each.keywords)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and "labels" in ast.unparse(node.targets[0]):
            found += [each for each in ast.walk(node.value) if isinstance(each, ast.Call)]
    cuts = [(node, cut) for node in found if (cut := _cut_of(node)) is not None]
    sizes = {getattr(cut, "value", reader.module.names.get(getattr(cut, "id", ""))) for _, cut in cuts}
    size = sizes.pop() if len(sizes) == 1 else None
    if type(size) is int:
        where = f"{reader.location(cuts[0][0])}: {short_text(cuts[0][0])}"
        reader.notes.hints.setdefault(_TARGETS[0], Setting(value=size, origin=where))


def _most_of_tokenizers(tree: ast.Module) -> Any:
    """Return the ``model_max_length`` that a script gives its tokenizers, if it is one number."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and "okenizer" in ast.unparse(node.func))
    given = {
        getattr(each.value, "value", UNKNOWN)
        for call in calls
        for each in call.keywords
        if each.arg == "model_max_length"
    }
    return given.pop() if len(given) == 1 else UNKNOWN


def _cut_of(node: ast.AST) -> ast.expr | None:
    """Return the length that a tokenizer is told to cut to; None: it is another expression."""
    if not isinstance(node, ast.Call) or not _TOKENIZES.search(ast.unparse(node.func).rpartition(".")[2]):
        return None
    return next((each.value for each in node.keywords if each.arg == "max_length"), None)


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each import as its library and the imported name, which is empty for ``import library``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (((node.module or "").partition(".")[0], alias.name) for alias in node.names)
