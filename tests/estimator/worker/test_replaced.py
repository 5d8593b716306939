"""Attributes of libraries have their own values again, whatever happens while they are replaced."""

from types import SimpleNamespace

import pytest

from vramtop.estimator.worker.replaced import replaced


def test_attributes_have_their_own_values_again_after_a_failure() -> None:
    library = SimpleNamespace(one=1, two=2)
    seen = []

    def fail_inside() -> None:
        with replaced((library, "one", 10), (library, "two", 20)):
            seen.append((library.one, library.two))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert seen == [(10, 20)]
    assert (library.one, library.two) == (1, 2)


def test_an_attribute_that_is_replaced_twice_has_its_first_value_again() -> None:
    library = SimpleNamespace(one=1)
    with replaced((library, "one", 10), (library, "one", 11)):
        assert library.one == 11
    assert library.one == 1


def test_nothing_stays_replaced_if_a_library_has_no_such_attribute() -> None:
    library = SimpleNamespace(one=1)
    with pytest.raises(AttributeError), replaced((library, "one", 10), (library, "missing", 0)):
        pytest.fail("it was entered")
    assert vars(library) == {"one": 1}
