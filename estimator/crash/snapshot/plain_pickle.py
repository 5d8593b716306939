"""Reads pickles that hold plain containers only, and executes nothing: a pickle of another kind is an error.

``pickle.load`` runs what a file asks for. Here each opcode that could import, call or build an object is refused, and
sizes are bounded: the bytes of the file, of a text, the number of containers and of values, and how deep marks nest.
Opcodes: ``pickletools`` of Python 3.14, protocols 0 to 5.
"""

import codecs
import struct
from typing import Any, BinaryIO, NoReturn

from ...common import InputError

MAX_PICKLE_BYTES = 2 * 2**30
_MAX_TEXT = 2**20
_MAX_CONTAINERS = 8_000_000
_MAX_VALUES = 200_000_000
_MAX_MARKS = 64
_MAX_STACK = 4_000_000
_MAX_INTEGER_BYTES = 16
_MAX_LINE = 256
_SCALARS = (int, str, float, bool, bytes, type(None))
_FIXED = {0x4E: None, 0x88: True, 0x89: False}
"""NONE, NEWTRUE, NEWFALSE."""


def load_plain_pickle(file: BinaryIO) -> Any:
    """Return what a pickle holds: dictionaries, lists, tuples of plain values, texts and numbers.

    Args:
        file: buffered; it is read once.

    Raises:
        InputError: it is not a pickle, is cut off, holds other things, or exceeds a bound.
    """
    try:
        return _Machine(file).run()
    except (IndexError, KeyError, struct.error, ValueError, UnicodeDecodeError, TypeError, OverflowError):
        raise InputError("the pickle is incomplete: cut off, or damaged") from None
    except MemoryError:
        raise InputError("this machine has too little memory to read it") from None


class _Machine:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._containers = self._values = 0
        self._bytes = 0

    def run(self) -> Any:  # noqa: PLR0912, PLR0915 - one branch per opcode, the frequent ones first
        read, stack, memo, one = self._file.read, self._stack, self._memo, self._one
        while True:
            code = read(1)
            if not code:
                raise ValueError("cut off")
            self._values += 1
            if self._values > _MAX_VALUES:
                _refuse(f"it holds more than {_MAX_VALUES:,} values")
            op = code[0]
            if op == 0x6A:  # LONG_BINGET
                stack.append(memo[int.from_bytes(read(4), "little")])
            elif op == 0x68:  # BINGET
                stack.append(memo[read(1)[0]])
            elif op == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif op in (0x4B, 0x4D):  # BININT1, BININT2
                stack.append(int.from_bytes(self._take(1 if op == 0x4B else 2), "little"))
            elif op == 0x4A:  # BININT
                stack.append(int.from_bytes(self._take(4), "little", signed=True))
            elif op == 0x8A:  # LONG1
                stack.append(self._integer(one()))
            elif op in (0x8C, 0x58, 0x8D):  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
                stack.append(self._text({0x8C: 1, 0x58: 4, 0x8D: 8}[op]).decode("utf-8", "surrogatepass"))
            elif op == 0x28:  # MARK
                self._marks.append(len(stack))
                if len(self._marks) > _MAX_MARKS:
                    _refuse(f"it is nested more than {_MAX_MARKS} deep")
            elif op == 0x75:  # SETITEMS
                items = self._marked()
                self._set(stack[-1], items)
            elif op == 0x65:  # APPENDS
                items = self._marked()
                self._list(stack[-1]).extend(items)
            elif op in (0x7D, 0x5D):  # EMPTY_DICT, EMPTY_LIST
                stack.append(self._new({} if op == 0x7D else []))
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
                memo[int.from_bytes(self._take(4), "little") if op == 0x72 else one()] = stack[-1]
            elif op == 0x2E:  # STOP
                return stack.pop()
            else:
                self._rare(op)
            if len(stack) > _MAX_STACK:
                _refuse(f"one of its containers has more than {_MAX_STACK:,} values")

    def _rare(self, op: int) -> None:  # noqa: PLR0912 - one branch per opcode
        stack = self._stack
        if op == 0x80:  # PROTO
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
            self._memo[int(self._line())] = stack[-1]
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
        data = self._file.read(count)
        if len(data) != count:
            raise ValueError("cut off")
        return data

    def _line(self, most: int = _MAX_LINE, encoding: str = "utf-8") -> str:
        line = self._file.readline(most)
        if not line.endswith(b"\n"):
            raise ValueError("too long")
        return line[:-1].decode(encoding)

    def _text(self, length_bytes: int) -> bytes:
        length = int.from_bytes(self._take(length_bytes), "little")
        if length > _MAX_TEXT:
            _refuse(f"it holds a text of more than {_MAX_TEXT:,} bytes")
        self._bytes += length
        if self._bytes > MAX_PICKLE_BYTES:
            _refuse(f"it holds more than {MAX_PICKLE_BYTES // 2**30} GiB of text")
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
            _refuse(f"it holds more than {_MAX_CONTAINERS:,} containers")
        return container

    def _list(self, value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError("not a list")
        return value

    def _set(self, target: Any, items: list[Any]) -> None:
        if type(target) is not dict or len(items) % 2:
            raise ValueError("not a dictionary")
        keys = items[::2]
        if any(type(key) not in _SCALARS for key in keys):  # the hash of a deeply nested tuple would end the process
            _refuse("a key of its dictionaries is not a plain value")
        target.update(zip(keys, items[1::2], strict=True))

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        if any(type(item) not in _SCALARS for item in items):
            _refuse("it holds tuples of containers, which no memory snapshot does")
        return self._new(tuple(items))  # type: ignore[no-any-return]


def _refuse(sentence: str) -> NoReturn:
    raise InputError(sentence)
