import pytest

from vramtop.estimator.worker.memory.allocator_settings import AllocatorSettings

MIB = 1 << 20


@pytest.mark.parametrize("text", [None, "", "  ", ","])
def test_an_empty_setting_is_torchs_default(text):
    assert AllocatorSettings.from_conf(text) == AllocatorSettings()


def test_every_modelled_option():
    settings = AllocatorSettings.from_conf("expandable_segments:True, max_split_size_mb:128,backend:native")
    assert settings == AllocatorSettings(expandable_segments=True, max_split_bytes=128 * MIB)


def test_of_two_values_the_last_holds():
    settings = AllocatorSettings.from_conf("expandable_segments:True,expandable_segments:False")
    assert settings == AllocatorSettings()


def test_options_without_effect_on_memory_are_ignored():
    conf = "pinned_use_cuda_host_register:True,pinned_num_register_threads:8,release_lock_on_cudamalloc:True"
    assert AllocatorSettings.from_conf(conf) == AllocatorSettings()


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ("foo:1", "'foo'"),
        ("max_split_size_mb:2", "at least 20"),
        ("max_split_size_mb:lots", "at least 20"),
        ("expandable_segments:true", "True or False"),
        ("expandable_segments", "True or False"),
        ("roundup_power2_divisions:[256:4,>:2]", "allocates more"),
        ("large_segment_size_mb:64", "reserves more"),
        ("backend:cudaMallocAsync", "native"),
        ("garbage_collection_threshold:0.8", "not modelled"),
        ("throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom"),
    ],
)
def test_options_that_are_not_followed_get_a_note_and_change_nothing_else(conf, says):
    settings = AllocatorSettings.from_conf(f"{conf},expandable_segments:True")
    assert says in settings.notes[0]
    assert settings == AllocatorSettings(expandable_segments=True, notes=settings.notes[:1])
