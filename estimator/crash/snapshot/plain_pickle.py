"""Reads pickles that hold plain containers only, and executes nothing: a pickle of another kind is an error.

``pickle.load`` runs what a file asks for. Here each opcode that could import, call or build an object is refused, and
sizes are bounded: the bytes of the file and of a text, the number of containers and of values, and how deep marks nest.
Opcodes: ``pickletools`` of Python 3.14, protocols 0 to 5.
"""

import codecs
import io
import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple, NoReturn

from ...common.errors import InputError
from ...common.limits import SNAPSHOT, SNAPSHOT_TEXT, LimitError

# Blocks and events of a snapshot as small rows: a file is mostly these, millions of dictionaries with the same keys.
#
# The first dictionary with certain keys is read opcode by opcode. An expression is made of its keys, which matches
# the opcodes of a further one as a whole; what it does not match is read opcode by opcode too.


_COLUMNS = {
    "state": "kind",
    "action": "kind",
    "address": "address",
    "addr": "address",
    "device_free": "address",
    "size": "size",
    "frames": "frames",
}
_MAX_KEYS = 24
GET = rb"(?:j....|h.)"
"""LONG_BINGET, BINGET."""
_ENTRIES_GETS = rb"(?:" + 8 * rb"j...." + rb"){0,16}" + GET + rb"{0,512}"
"""Eight at once, which takes half the time; bounded, as what does not match is tried with each number of eights."""
_SIZE = rb"(?:K.|M..|J...[\0-\x7f]|\x8a(?:\x05....|\x06.....|\x07......|\x08.......)[\0-\x7f])"
"""Integers from 0: BININT1, BININT2, BININT, LONG1."""
_NUMBER = rb"(?:K.|M..|J....|\x8a(?:\x05.....|\x06......|\x07.......|\x08........))"
_TEXT = rb"\x8c(?:" + b"|".join(re.escape(bytes([length])) + length * b"." for length in range(65)) + rb")"
_SPELLED = rb"(?:" + _TEXT + rb"|" + 2 * _NUMBER + rb"\x86)"
"""A short text, or a pair of numbers."""
_OTHER = rb"(?:" + GET + rb"|" + _NUMBER + rb"|[N\x88\x89]|(?P<other%d>" + _SPELLED + rb")\x94|" + _SPELLED + rb")"
_FRAMES = (
    rb"(?:(?P<known>" + GET + rb")|\](?P<listed>\x94?)(?:\((?P<run>" + _ENTRIES_GETS + rb")e|(?P<one>" + GET + rb")a)?)"
)


class Entry(NamedTuple):
    """A block of memory, or an event of the history."""

    kind: Any
    """State of the block, or what happened; None: neither is known."""
    address: int | None
    """Its address; of a failure the free memory."""
    size: int | None
    frames: Any
    """List or tuple of dictionaries; None: not recorded."""


class Shape(NamedTuple):
    """Opcodes of the entries with certain keys."""

    expression: re.Pattern[bytes]
    groups: tuple[str, ...]
    """The last ones: values that are spelled out and may be named again."""


def count_of(value: Any) -> int | None:
    """Return a size, address or index; None for what is none."""
    return value if type(value) is int and 0 <= value < 2**64 else None


def entry_of(value: Any) -> Entry | None:
    """Return the entry that a dictionary is; None: it is no dictionary."""
    if type(value) is Entry:
        return value
    if not isinstance(value, dict):
        return None
    get, size = value.get, value.get("size")
    return Entry(
        get("state", get("action")),
        count_of(get("address", get("device_free", get("addr")))),
        (count_of(size) or 0) if type(size) is int else None,
        get("frames") if "frames" in value else _first_frames(get("history")),
    )


def shape_of(keys: Sequence[Any], memo: list[Any]) -> Shape | None:
    """Return the expression for further dictionaries with these keys; None: they are no entries, or not as torch's.

    Args:
        keys: with frames as the last one, if there are some.
        memo: what the pickle names by its number, the keys too.
    """
    columns = [_COLUMNS.get(key) for key in keys]
    frames = columns.pop() if columns[-1] == "frames" else None
    if len(keys) > _MAX_KEYS or sorted(filter(None, columns)) != ["address", "kind", "size"]:
        return None
    parts = [rb"\}(?P<own>\x94?)\("]
    for key, column in zip(keys, [*columns, frames] if frames else columns, strict=True):
        if key not in memo:
            return None
        parts.append(re.escape(_get(memo.index(key))))
        if column == "frames":
            parts.append(_FRAMES)
        elif column is not None:
            parts.append(b"(?P<%b>%b)" % (column.encode(), GET if column == "kind" else _SIZE))
        else:
            parts.append(_OTHER.replace(b"%d", b"%d" % len(parts)))
    if not frames:
        parts.append(_FRAMES + b"{0}")
    expression = re.compile(b"".join(parts) + b"u", re.DOTALL)
    fixed = ("own", "kind", "address", "size", "known", "listed", "run", "one")
    others = [name for name in expression.groupindex if name.startswith("other")]
    return Shape(expression, (*fixed, *others))


def _get(number: int) -> bytes:
    return b"h" + bytes([number]) if number < 256 else b"j" + number.to_bytes(4, "little")


def _first_frames(history: Any) -> Any:
    first = history[0] if isinstance(history, list) and history else None
    return first.get("frames") if isinstance(first, dict) else None


_MAX_CONTAINERS = SNAPSHOT.items or 0
_MAX_VALUES = 200_000_000
_MAX_MARKS = 64
_MAX_STACK = 4_000_000
_MAX_INTEGER_BYTES = 16
_MAX_LINE = 256
_MAX_TEXT = SNAPSHOT_TEXT.bytes or 0
_CHUNK_BYTES = 2**20
_LONGEST = 24
"""Bytes to read ahead: no opcode is longer, except those that hold a line or a text."""
_GET = re.compile(GET, re.DOTALL)
_GETS = re.compile(rb"(?:j[\0-\xff]{4}|h[\0-\xff]){2,512}")
"""Opcodes that push what was read before, one after another: a stack is such a list of frames."""
_MAX_KEPT = 20_000
"""Such sequences, sizes and short values of which the result is kept, as most come again."""
_MAX_SHAPES = 16
_TOO_MANY = f"it holds more than {_MAX_VALUES:,} values"
_TOO_LONG = f"one of its containers has more than {_MAX_STACK:,} values"
_SCALARS = frozenset((int, str, float, bool, bytes, type(None)))
_FIXED = {0x4E: None, 0x88: True, 0x89: False}
"""NONE, NEWTRUE, NEWFALSE."""


def load_plain_pickle(file: BinaryIO, *, entries: bool = False, progress: Callable[[int], None] | None = None) -> Any:
    """Return what a pickle holds: dictionaries, lists, tuples of plain values, texts and numbers.

    Args:
        file: buffered; it is read once.
        entries: most dictionaries that are an ``Entry`` become one, which takes a fifth of the memory.
        progress: called with the bytes that were read.

    Raises:
        InputError: it is not a pickle, is cut off, holds other things, or exceeds a bound.
    """
    try:
        return _Machine(file, _MAX_SHAPES if entries else 0, progress).run()
    except LimitError as error:
        raise InputError(str(error)) from None
    except (IndexError, KeyError, struct.error, ValueError, UnicodeDecodeError, TypeError, OverflowError):
        raise InputError("the pickle is incomplete: cut off, or damaged") from None
    except MemoryError:
        raise InputError("this machine has too little memory to read it") from None


class _Machine:
    def __init__(self, file: BinaryIO, max_shapes: int = 0, progress: Callable[[int], None] | None = None) -> None:
        self._file = file
        self._progress = progress
        self._read = 0
        self._buffer = b""
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] | dict[int, Any] = []
        """A list takes an eighth of a dictionary's memory; a pickle whose numbers leave some out needs one."""
        self._runs: dict[bytes, tuple[Any, ...]] = {}
        self._shapes: list[Shape] = []
        self._keys: set[tuple[Any, ...]] = set()
        """Keys of dictionaries of which a shape was made, or cannot be made."""
        self._max_shapes = max_shapes
        self._containers = self._values = 0

    def run(self) -> Any:  # noqa: PLR0912, PLR0915 - one branch per opcode, the frequent ones first
        stack, memo, marks, shapes = self._stack, self._memo, self._marks, self._shapes
        buffer, at, enough = b"", 0, -1
        for _ in range(_MAX_VALUES):
            if at > enough:
                self._at = at
                self._fill(_LONGEST)
                buffer, at, enough = self._buffer, 0, len(self._buffer) - _LONGEST
            op = buffer[at]  # IndexError: cut off
            if op == 0x7D and shapes and (after := self._entries(buffer, at)) > at:  # EMPTY_DICT
                at = after
            elif op in (0x68, 0x6A):  # BINGET, LONG_BINGET
                after = at + (2 if op == 0x68 else 5)
                then = buffer[after]
                if then in (0x68, 0x6A) and buffer[after + (2 if then == 0x68 else 5)] in (0x68, 0x6A):
                    at = self._push_known(at)
                    continue
                key = buffer[at + 1] if op == 0x68 else int.from_bytes(buffer[at + 1 : after], "little")
                stack.append(memo[key])
                at = after
            elif op == 0x94:  # MEMOIZE
                self._remember(len(memo), stack[-1])
                at += 1
            elif op == 0x4B:  # BININT1
                stack.append(buffer[at + 1])
                at += 2
            elif op == 0x4D:  # BININT2
                stack.append(buffer[at + 1] | buffer[at + 2] << 8)
                at += 3
            elif op == 0x4A:  # BININT
                stack.append(int.from_bytes(buffer[at + 1 : at + 5], "little", signed=True))
                at += 5
            elif op == 0x8A and 0 < buffer[at + 1] <= _MAX_INTEGER_BYTES:  # LONG1
                after = at + 2 + buffer[at + 1]
                stack.append(int.from_bytes(buffer[at + 2 : after], "little", signed=True))
                at = after
            elif op == 0x28:  # MARK
                marks.append(len(stack))
                if len(marks) > _MAX_MARKS:
                    _refuse(f"it is nested more than {_MAX_MARKS} deep")
                at += 1
            elif op == 0x75:  # SETITEMS
                mark = marks.pop()
                items = stack[mark:]
                del stack[mark:]
                self._set(stack[-1], items)
                if len(self._keys) < self._max_shapes and "size" in stack[-1]:
                    self._learn(stack[-1])
                at += 1
            elif op in (0x7D, 0x5D):  # EMPTY_DICT, EMPTY_LIST
                stack.append(self._new({} if op == 0x7D else []))
                at += 1
            elif op == 0x65:  # APPENDS
                mark = marks.pop()
                items = stack[mark:]
                del stack[mark:]
                self._list(stack[-1]).extend(items)
                at += 1
            else:
                self._at = at + 1
                if op == 0x2E:  # STOP
                    return stack.pop()
                self._rare(op)
                buffer, at, enough = self._buffer, self._at, len(self._buffer) - _LONGEST
                memo = self._memo
            if len(stack) > _MAX_STACK:
                _refuse(_TOO_LONG)
        return _refuse(_TOO_MANY)

    def _entries(self, buffer: bytes, at: int) -> int:
        """Push the entries whose opcodes stand here; return where the next opcode stands."""
        memo, stack, shapes = self._memo, self._stack, self._shapes
        if not isinstance(memo, list):
            return at
        known_run, from_bytes = self._runs.get, int.from_bytes
        while True:
            for shape in shapes:
                found = shape.expression.match(buffer, at)
                if found is not None:
                    break
            else:
                return at
            own, kind, address, size, known, listed, run, one, *others = found.group(*shape.groups)
            if known is not None:
                frames: Any = memo[from_bytes(known, "little") >> 8]
            elif listed is None:
                frames = None
            else:
                frames = known_run(run) or self._known(run or one or b"")
            place = from_bytes(address, "little") >> (16 if address[0] == 0x8A else 8)
            entry = tuple.__new__(Entry, (memo[from_bytes(kind, "little") >> 8], place, _whole(size), frames))
            stack.append(self._new(entry))
            if own:
                memo.append(entry)
            for spelled in others:
                if spelled is not None:
                    memo.append(_value(spelled))
            if listed:
                memo.append(frames)
            at = found.end()

    def _learn(self, target: dict[Any, Any]) -> None:
        """Have further entries with these keys read as a whole, once the numbers of the keys are known."""
        keys, memo = tuple(target), self._memo
        if keys not in self._keys and isinstance(memo, list):
            self._keys.add(keys)
            shape = shape_of(keys, memo)
            if shape is not None:
                self._shapes.insert(0, shape)  # the events come after the blocks

    def _push_known(self, at: int) -> int:
        """Push what a sequence of opcodes names of what was read before; return where the next opcode stands."""
        found = _GETS.match(self._buffer, at)
        if found is None:
            raise ValueError("cut off")
        values = self._known(found.group())
        self._values += len(values)
        if self._values > _MAX_VALUES:
            _refuse(_TOO_MANY)
        self._stack.extend(values)
        return found.end()

    def _known(self, run: bytes) -> tuple[Any, ...]:
        values = self._runs.get(run)
        if values is None:
            memo, gets = self._memo, _GET.findall(run)
            values = tuple([memo[int.from_bytes(get, "little") >> 8] for get in gets])
            self._values += len(values)
            if len(self._runs) >= _MAX_KEPT:
                self._runs.clear()
            self._runs[run] = values
        return values

    def _remember(self, key: int, value: Any) -> None:
        if isinstance(self._memo, list):
            if key == len(self._memo):
                self._memo.append(value)
                return
            self._memo = dict(enumerate(self._memo))
        if key in self._memo:  # no pickler writes this, but then a known sequence means something else
            self._runs.clear()
        self._memo[key] = value

    def _rare(self, op: int) -> None:  # noqa: PLR0912, PLR0915 - one branch per opcode
        stack = self._stack
        if op == 0x8A:  # LONG1, of a length that no size or address has
            stack.append(self._integer(self._one()))
        elif op in (0x8C, 0x58, 0x8D):  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
            stack.append(self._text({0x8C: 1, 0x58: 4, 0x8D: 8}[op]).decode("utf-8", "surrogatepass"))
        elif op == 0x61:  # APPEND
            item = stack.pop()
            self._list(stack[-1]).append(item)
        elif op == 0x73:  # SETITEM
            item, key = stack.pop(), stack.pop()
            self._set(stack[-1], [key, item])
        elif op in _FIXED:
            stack.append(_FIXED[op])
        elif op == 0x47:  # BINFLOAT
            stack.append(struct.unpack(">d", self._take(8))[0])
        elif op in (0x72, 0x71):  # LONG_BINPUT, BINPUT
            self._remember(int.from_bytes(self._take(4), "little") if op == 0x72 else self._one(), stack[-1])
        elif op == 0x80:  # PROTO
            if self._one() > 5:
                _refuse("its pickle protocol is newer than 5")
        elif op == 0x95:  # FRAME
            self._take(8)
        elif op == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif op in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
            count = op - 0x84
            items, stack[-count:] = stack[-count:], []
            if len(items) != count:
                raise ValueError("too few")
            stack.append(self._tuple(items))
        elif op == 0x74:  # TUPLE
            items = self._marked()
            stack.append(self._tuple(items))
        elif op in (0x64, 0x6C):  # DICT, LIST
            items = self._marked()
            stack.append(self._new({} if op == 0x64 else items))
            if op == 0x64:
                self._set(stack[-1], items)
        elif op == 0x8B:  # LONG4
            stack.append(self._integer(int.from_bytes(self._take(4), "little")))
        elif op in (0x49, 0x4C):  # INT, LONG
            text = self._line().rstrip("L")
            stack.append({"00": False, "01": True}[text] if text in ("00", "01") and op == 0x49 else int(text))
        elif op == 0x46:  # FLOAT
            stack.append(float(self._line()))
        elif op == 0x56:  # UNICODE
            stack.append(self._line(_MAX_TEXT, "raw-unicode-escape"))
        elif op in (0x43, 0x42, 0x8E):  # SHORT_BINBYTES, BINBYTES, BINBYTES8
            stack.append(self._text({0x43: 1, 0x42: 4, 0x8E: 8}[op]))
        elif op in (0x54, 0x55):  # BINSTRING, SHORT_BINSTRING of Python 2
            stack.append(self._text(4 if op == 0x54 else 1).decode("utf-8", "replace"))
        elif op == 0x53:  # STRING of Python 2
            stack.append(
                codecs.escape_decode(self._line(_MAX_TEXT).strip("'\"").encode())[0].decode("utf-8", "replace")
            )
        elif op == 0x67:  # GET
            stack.append(self._memo[int(self._line())])
        elif op == 0x70:  # PUT
            self._remember(int(self._line()), stack[-1])
        elif op == 0x30:  # POP
            stack.pop()
        elif op == 0x31:  # POP_MARK
            self._marked()
        elif op == 0x32:  # DUP
            stack.append(stack[-1])
        else:
            _refuse("it holds objects, so it is not a memory snapshot; nothing in it was executed")

    def _one(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> bytes:
        if len(self._buffer) - self._at < count:
            self._fill(count)
        data = self._buffer[self._at : self._at + count]
        if len(data) != count:
            raise ValueError("cut off")
        self._at += count
        return data

    def _fill(self, count: int) -> None:
        """Read on until there are ``count`` bytes, if the file has so many."""
        left = self._buffer[self._at :]
        while len(left) < count and (more := self._file.read(max(_CHUNK_BYTES, count - len(left)))):
            left += more
            self._read += len(more)
        if self._read > (SNAPSHOT.bytes or 0):
            raise SNAPSHOT.too_large()
        if self._progress:
            self._progress(self._read)
        self._buffer, self._at = left, 0

    def _line(self, most: int = _MAX_LINE, encoding: str = "utf-8") -> str:
        self._fill(most)
        end = self._buffer.find(b"\n", self._at, self._at + most)
        if end < 0:
            raise ValueError("too long")
        line, self._at = self._buffer[self._at : end], end + 1
        return line.decode(encoding)

    def _text(self, length_bytes: int) -> bytes:
        length = int.from_bytes(self._take(length_bytes), "little")
        if length > _MAX_TEXT:
            raise SNAPSHOT_TEXT.too_large()
        return self._take(length)

    def _integer(self, length: int) -> int:
        if length > _MAX_INTEGER_BYTES:
            _refuse("it holds an integer of more than 128 bits")
        return int.from_bytes(self._take(length), "little", signed=True)

    def _marked(self) -> list[Any]:
        mark, stack = self._marks.pop(), self._stack
        items = stack[mark:]
        del stack[mark:]
        return items

    def _new(self, container: Any) -> Any:
        self._containers += 1
        if self._containers > _MAX_CONTAINERS:
            raise SNAPSHOT.too_many("dictionaries, lists and tuples")
        return container

    def _list(self, value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError("not a list")
        return value

    def _set(self, target: Any, items: list[Any]) -> None:
        if type(target) is not dict or len(items) % 2:
            raise ValueError("not a dictionary")
        keys = items[::2]
        if not _SCALARS.issuperset(map(type, keys)):  # the hash of a deeply nested tuple would end the process
            _refuse("a key of its dictionaries is not a plain value")
        target.update(zip(keys, items[1::2], strict=True))

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        if not _SCALARS.issuperset(map(type, items)):
            _refuse("it holds tuples of containers, which no memory snapshot does")
        return self._new(tuple(items))  # type: ignore[no-any-return]


@lru_cache(maxsize=_MAX_KEPT)
def _value(spelled: bytes) -> Any:
    """Return the value of the opcodes of a short text or a pair of numbers."""
    return _Machine(io.BytesIO(spelled + b".")).run()


@lru_cache(maxsize=_MAX_KEPT)
def _whole(integer: bytes) -> int:
    """Return the value of an opcode of an integer from 0; of LONG1 the length stands before it."""
    return int.from_bytes(integer, "little") >> (16 if integer[0] == 0x8A else 8)


def _refuse(sentence: str) -> NoReturn:
    raise InputError(sentence)
