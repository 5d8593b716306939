from vramtop.monitor.snapshot.gpu_details import clock_reasons


def test_each_bit_is_a_word_and_the_most_serious_comes_first() -> None:
    assert [reason.word for reason in clock_reasons(0x4 | 0x20 | 0x2)] == ["hot", "power cap", "clocks set"]
    assert [reason.kind for reason in clock_reasons(0x1)] == ["idle"]
    assert clock_reasons(0) == ()
    assert len({reason.word for bit in range(11) for reason in clock_reasons(1 << bit)}) == 11


def test_the_hardware_slowdown_is_named_by_its_cause_where_that_is_known() -> None:
    assert [reason.word for reason in clock_reasons(0x8 | 0x80)] == ["power brake"]
    assert [reason.word for reason in clock_reasons(0x8)] == ["hardware slowdown"]


def test_a_bit_of_a_later_driver_is_named_by_its_number() -> None:
    (first, second) = clock_reasons(0x8000 | 0x4)
    assert (first.word, second.word) == ("reason 0x8000", "power cap")
