import pytest
from hypothesis import given, strategies as st

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import GIB, MIB, TIB, format_apart, format_gib, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * GIB),
        ("80GB", 80_000_000_000),
        ("81559MiB", 81559 * MIB),
        ("24 gib", 24 * GIB),
        ("1.5GiB", 3 * GIB // 2),
        ("16G", 16 * GIB),
        ("512", 512),
    ],
)
def test_sizes_may_have_separators_and_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "80 GiBs", "-3GiB", "0", "1.2.3GiB", "GiB", 60 * "1" + "!"])
def test_an_invalid_size_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="size"):
        parse_size(text)


@given(st.integers(1, 2**50))
def test_bytes_round_trip(size: int) -> None:
    assert parse_size(str(size)) == size


def test_sizes_are_shown_in_gib_and_unknown_is_not_zero() -> None:
    assert format_gib(3 * GIB // 2) == "1.5"
    assert format_gib(-3 * GIB, signed=True) == "−3.0"
    assert format_gib(3 * GIB, signed=True) == "+3.0"
    assert format_gib(-10, signed=True) == "0.0"
    assert format_gib(None) == "n/a"


def test_sums_have_their_unit_and_small_ones_are_not_zero_tib() -> None:
    assert format_size(3 * GIB // 2) == "1.5 GiB"
    assert format_size(1023 * GIB) == "1023.0 GiB"
    assert format_size(TIB) == "1.00 TiB"
    assert format_size(6250 * GIB) == "6.10 TiB"
    assert format_size(None) == "n/a"


def test_sizes_that_differ_are_printed_as_different() -> None:
    assert format_apart(2_100_000_000, 2_107_000_000) == ("1.956", "1.962")
    assert format_apart(3 * GIB, 4 * GIB) == ("3.0", "4.0")
    assert format_apart(GIB, GIB) == ("1.0", "1.0")
