import pytest

from vramtop.estimator.worker.memory.allocator_settings import INTERVALS, AllocatorSettings

MIB = 1 << 20


@pytest.mark.parametrize("text", [None, "", "  ", ","])
def test_an_empty_setting_is_torchs_default(text):
    assert AllocatorSettings.from_conf(text) == AllocatorSettings()


def test_every_modelled_option():
    settings = AllocatorSettings.from_conf(
        "expandable_segments:True, max_split_size_mb:128,max_non_split_rounding_mb:40,"
        "per_process_memory_fraction:0.9,backend:native"
    )
    assert settings == AllocatorSettings(
        expandable_segments=True,
        max_split_bytes=128 * MIB,
        non_split_rounding_bytes=40 * MIB,
        memory_fraction=0.9,
    )


def test_of_two_values_the_last_holds():
    settings = AllocatorSettings.from_conf("expandable_segments:True,expandable_segments:False")
    assert settings == AllocatorSettings()


def test_options_without_effect_on_memory_are_ignored():
    conf = "pinned_use_cuda_host_register:True,pinned_num_register_threads:8,release_lock_on_cudamalloc:True"
    assert AllocatorSettings.from_conf(conf) == AllocatorSettings()


def divisions(conf, *sizes_mib):
    settings = AllocatorSettings.from_conf(conf)
    assert settings.notes == ()
    return [settings.divisions(int(size * MIB)) for size in sizes_mib]


def test_one_number_of_divisions_holds_for_all_sizes():
    assert divisions("roundup_power2_divisions:8", 0.001, 1, 3, 1 << 16, 1 << 20) == [8] * 5


def test_divisions_by_interval():
    # torch's own case (c10's AllocatorConfig_test): the first holds below, > beyond the last
    conf = "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]"
    assert divisions(conf, 32, 64, 128, 256, 512, 1024, 2048) == [8, 8, 2, 4, 2, 4, 1]
    assert divisions(conf, 127.9, 128, 1 << 17) == [8, 2, 1]


def test_intervals_without_divisions_are_not_rounded():
    assert divisions("roundup_power2_divisions:[256:4,1024:2]", 128, 256, 512, 1024, 2048) == [4, 4, 0, 2, 0]
    assert len(AllocatorSettings.from_conf("roundup_power2_divisions:[256:4]").roundup_divisions) == INTERVALS


def test_a_larger_large_segment_raises_the_minimum_split_size_in_any_order():
    settings = AllocatorSettings.from_conf("max_split_size_mb:30,large_segment_size_mb:32")
    assert (settings.max_split_bytes, settings.large_segment_bytes) == (None, 32 * MIB)
    assert "at least 32" in settings.notes[0]


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ("foo:1", "'foo'"),
        ("max_split_size_mb:2", "at least 20"),
        ("max_split_size_mb:lots", "at least 20"),
        ("large_segment_size_mb:10", "at least 11"),
        ("per_process_memory_fraction:1.2", "between 0 and 1"),
        ("per_process_memory_fraction:", "between 0 and 1"),
        ("expandable_segments:true", "True or False"),
        ("expandable_segments", "True or False"),
        ("roundup_power2_divisions:3", "powers of two"),
        ("roundup_power2_divisions:[256:3]", "powers of two"),
        ("roundup_power2_divisions:[256:4", "bracket"),
        ("backend:cudaMallocAsync", "native"),
        ("garbage_collection_threshold:0.8", "not modelled"),
        ("throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom"),
    ],
)
def test_options_that_are_not_followed_get_a_note_and_change_nothing_else(conf, says):
    settings = AllocatorSettings.from_conf(conf + ",max_non_split_rounding_mb:64")
    assert says in settings.notes[0]
    assert len(settings.notes) == 1
    if "[256:4," not in conf + ",":  # an open bracket swallows the rest
        assert settings.non_split_rounding_bytes == 64 * MIB
    assert settings.max_split_bytes is None
