"""A cache in a file is the cache; a file that is not one leaves the cache as it was."""

import json
import os
import stat
import threading

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from headwise.caches.model import ModelCache
from headwise.caches.paged import PagedCache
from headwise.caches.quantized import QuantizedCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import CrossCache, GrowingCache, StaticCache
from headwise.caches.storage import FORMAT
from headwise.errors import ConfigError, OutputError

KINDS = {
    "growing": GrowingCache,
    "static": lambda: StaticCache(40),
    "rolling": lambda: RollingCache(5),
    "rolling with spare slots": lambda: RollingCache(5, spare=3),
    "paged": lambda: PagedCache(3),
    "paged, bounded": lambda: PagedCache(3, num_blocks=24),
    "quantised": lambda: QuantizedCache(GrowingCache(), bits=8),
    "quantised, rolling, 4 bits": lambda: QuantizedCache(RollingCache(5), bits=4),
    "quantised, paged": lambda: QuantizedCache(PagedCache(3)),
    "cross": CrossCache,
}


def chunk(num_tokens, batch=2, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, 3, num_tokens, 4, generator=generator).to(dtype) for _ in range(2))


def fill(cache, dtype=torch.float32):
    """Two uneven rows; where the cache can, a token has been taken back."""
    real_tokens = torch.ones(2, 11, dtype=torch.bool)
    real_tokens[1, :2] = False
    cache.update(*chunk(11, dtype=dtype), real_tokens=real_tokens)
    cache.crop([10, 8])
    return cache


def assert_same(one, other):
    assert one.lengths == other.lengths
    left, right = one._hold(), other._hold()
    for a, b in zip(left, right, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    assert one.num_bytes == other.num_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_comes_back_and_goes_on_alike(kind, dtype, tmp_path):
    saved, other = ModelCache([fill(KINDS[kind](), dtype)]), ModelCache([KINDS[kind]()])
    path = saved.save(tmp_path / "cache.safetensors")
    other.load(path)
    assert_same(saved.layers[0], other.layers[0])
    if kind == "cross":
        return
    for seed in range(3):  # through the end of a ring
        views = [cache.layers[0].update(*chunk(1 + 2 * seed, dtype=dtype, seed=seed)) for cache in (saved, other)]
        assert views[0].keys.dtype == views[1].keys.dtype == dtype
        assert_same(saved.layers[0], other.layers[0])


def test_positions_are_saved_too(tmp_path):
    saved, other = ModelCache([GrowingCache()]), ModelCache([GrowingCache()])
    saved.layers[0].update(*chunk(3), positions=torch.tensor([[4, 5, 6], [0, 1, 2]]))
    other.load(saved.save(tmp_path / "cache"))
    assert torch.equal(other.layers[0].view().key_positions, torch.tensor([[4, 5, 6], [0, 1, 2]]))


def spoil(how, path, tmp_path):
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "no safetensors":
        path.write_bytes(b"\xff" * 100)
    elif how == "foreign":
        save_file({"weight": torch.zeros(3)}, path)
    elif how == "absent":
        path.unlink()
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "another kind":
        ModelCache([fill(GrowingCache())]).save(path)
    elif how == "another setting":
        ModelCache([fill(StaticCache(41))]).save(path)
    elif how == "more layers":
        ModelCache([fill(StaticCache(40)), fill(StaticCache(40))]).save(path)


@pytest.mark.parametrize(
    "how",
    [
        "cut",
        "empty",
        "no safetensors",
        "foreign",
        "absent",
        "a folder",
        "another kind",
        "another setting",
        "more layers",
    ],
)
def test_a_file_that_is_none_of_this_cache_is_refused_and_changes_nothing(how, tmp_path):
    path = ModelCache([fill(StaticCache(40))]).save(tmp_path / "cache")
    spoil(how, path, tmp_path)
    cache, twin = (ModelCache([StaticCache(40)]) for _ in range(2))
    for one in (cache, twin):
        one.layers[0].update(*chunk(5, seed=9))
    with pytest.raises(ConfigError) as caught:
        cache.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert_same(cache.layers[0], twin.layers[0])


def change_file(path, change=None, describe=None):
    """Write a file anew with some of its tensors, or the descriptions in its header, changed."""
    with safe_open(path, framework="pt") as file:
        tensors, header = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    for name, new in (change or {}).items():
        tensors[name] = new(tensors.get(name)).contiguous()
    if describe is not None:
        described = describe(json.loads(header["caches"]))
        header["caches"] = described if isinstance(described, str) else json.dumps(described)
    save_file(tensors, path, metadata=header)


def both(make):
    """Two layers with what `fill` gives them, and two with other tokens."""
    saved, other, twin = (ModelCache([make(), make()]) for _ in range(3))
    for layer in saved:
        fill(layer)
    for cache in (other, twin):
        for layer in cache:
            layer.update(*chunk(5, seed=9))
    return saved, other, twin


def assert_refused(path, cache, twin, words):
    with pytest.raises(ConfigError, match=words) as caught:
        cache.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    for one, other in zip(cache, twin, strict=True):
        assert_same(one, other)


CHANGES = {
    "fewer values": {"1.values": lambda old: old[:, :, 1:]},
    "no rank": {"1.keys": lambda old: old[0]},
    "no rank of indices": {"1.key_index": lambda old: old[0]},
    "fewer heads": {"1.keys": lambda old: old[:, 1:], "1.values": lambda old: old[:, 1:]},
    "wider heads": {"1.keys": lambda old: torch.cat([old, old], -1)},
    "narrow heads": {"1.keys": lambda old: old[..., :3]},
    "other dtype": {"1.keys": lambda old: old.double()},
    "both of another dtype": {"1.keys": lambda old: old.int(), "1.values": lambda old: old.int()},
    "half as many tokens": {
        name: lambda old: old[:, :, ::2] if old.ndim == 4 else old[:, ::2]
        for name in ("1.keys", "1.values", "1.key_index")
    },
    "another row": {name: lambda old: torch.cat([old, old[:1]]) for name in ("1.keys", "1.values", "1.key_index")},
    "indices beyond the length": {"1.key_index": lambda old: torch.full_like(old, 99)},
    "indices below -1": {"1.key_index": lambda old: torch.full_like(old, -2)},
    "no index": {"1.key_index": lambda old: torch.full_like(old, -1)},
    "indices that are all one": {"1.key_index": torch.zeros_like},
    "indices in another order": {"1.key_index": lambda old: old.flip(1)},
    "indices of another rank": {"1.key_index": lambda old: old[..., None]},
    "more indices than tokens": {"1.key_index": lambda old: torch.cat([old, old], 1)},
    "indices of few bits": {"1.key_index": lambda old: old.int()},
    "positions of another shape": {"1.positions": lambda _: torch.zeros(2, 3, dtype=torch.long)},
    "more positions than tokens": {"1.positions": lambda _: torch.zeros(2, 100, dtype=torch.long)},
    "positions that are no whole numbers": {"1.positions": lambda _: torch.zeros(2, 10)},
    "something in an empty slot": {"1.keys": lambda old: old + (old == 0).to(old.dtype)},
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_whose_parts_do_not_fit_is_refused_and_no_layer_is_changed(kind, how, tmp_path):
    saved, cache, twin = both(KINDS[kind])
    path = saved.save(tmp_path / "cache")
    change_file(path, CHANGES[how])
    assert_refused(path, cache, twin, "fit together|cannot be loaded")


@pytest.mark.parametrize("name", ["blocks", "positions"])
def test_parts_that_a_kind_does_not_have_are_refused(name, tmp_path):
    saved, cache, twin = both(lambda: RollingCache(5))
    path = saved.save(tmp_path / "cache")
    change_file(path, {f"1.{name}": lambda _: torch.zeros(2, 5, dtype=torch.long)})
    assert_refused(path, cache, twin, "fit together")


@pytest.mark.parametrize(
    "change",
    [
        lambda old: torch.full_like(old, -1),  # no block
        lambda old: old[:, :1],  # too few
        torch.zeros_like,  # one for all
        lambda old: torch.where(old >= 0, old % 4, -1),  # one row's for the other's
        lambda old: old.flip(0),  # the longer row's for the shorter
        lambda old: old + 1,  # not as they are numbered
        lambda old: old.int(),
    ],
)
def test_tables_of_blocks_that_do_not_fit_are_refused(change, tmp_path):
    saved, cache, twin = both(lambda: PagedCache(3))
    path = saved.save(tmp_path / "cache")
    change_file(path, {"1.blocks": change})
    assert_refused(path, cache, twin, "fit together|cannot be loaded")


def test_a_row_with_fewer_blocks_than_its_tokens_fill_is_refused(tmp_path):
    saved, cache, twin = (ModelCache([PagedCache(3)]) for _ in range(3))
    saved.layers[0].update(*(torch.ones(2, 3, 12, 4) for _ in range(2)))  # any block holds the same
    for one in (cache, twin):
        one.layers[0].update(*chunk(5, seed=9))
    path = saved.save(tmp_path / "cache")
    change_file(path, {"0.blocks": lambda old: torch.where(old == 7, -1, old)})
    assert_refused(path, cache, twin, "blocks must be as many as the tokens of each row fill")


def test_a_table_without_blocks_is_refused(tmp_path):
    saved, cache, twin = both(lambda: PagedCache(3))
    path = saved.save(tmp_path / "cache")
    with safe_open(path, framework="pt") as file:
        tensors, header = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    del tensors["1.blocks"]
    save_file(tensors, path, metadata=header)
    assert_refused(path, cache, twin, "cannot be loaded: blocks")


def with_second(**changed):
    return lambda described: [described[0], {**described[1], **changed}]


@pytest.mark.parametrize(
    ("describe", "words"),
    [
        (with_second(lengths=[30, 30]), "fit together"),
        (with_second(lengths=[11, 8]), "fit together"),
        (with_second(lengths=[2**31 - 1, 8]), "fit together"),  # and no memory is asked for
        (with_second(lengths=[10]), "as many rows each; got .2, 1."),
        (lambda old: [{**one, "lengths": []} for one in old], "fit together"),
        (with_second(lengths=[10, 8.0]), "describe its caches"),
        (with_second(lengths=[10, True]), "describe its caches"),
        (with_second(lengths=[10, -1]), "describe its caches"),
        (with_second(lengths=[10**30, 8]), "describe its caches"),
        (with_second(lengths="ab"), "describe its caches"),
        (with_second(lengths=None), "describe its caches"),
        (with_second(settings=[1]), "describe its caches"),
        (with_second(kind=3), "describe its caches"),
        (with_second(heads=[[3, 5, "torch.float32"]] * 2), "fit together"),
        (with_second(heads=[[3, 4, "torch.int8"]] * 2), "describe its caches"),
        (with_second(heads=[[3, 4, ["torch.int8"]]] * 2), "describe its caches"),
        (with_second(heads=[[3, 4, "torch.float32"]]), "describe its caches"),
        (with_second(heads=[[3, 4]] * 2), "describe its caches"),
        (with_second(heads="ab"), "describe its caches"),
        (with_second(other=1), "describe its caches"),
        (with_second(kind="Growing\nCache" * 99), "for layer 1; got a"),
        (lambda old: old[0], "describe its caches"),
        (lambda _: "null", "describe its caches"),
        (lambda _: "[NaN, 1]", "describe its caches"),
        (lambda _: "[", "cannot be read"),
        (lambda _: "[" * 100_000, "cannot be read"),
    ],
)
@pytest.mark.parametrize("kind", ["growing", "quantised"])
def test_a_header_that_contradicts_the_tensors_is_refused_and_no_layer_is_changed(kind, describe, words, tmp_path):
    saved, cache, twin = both(KINDS[kind])
    path = saved.save(tmp_path / "cache")
    change_file(path, describe=describe)
    assert_refused(path, cache, twin, words)


def test_a_header_of_another_dtype_is_refused(tmp_path):
    saved, cache, twin = both(GrowingCache)  # the codes of a quantised cache could stand for it
    path = saved.save(tmp_path / "cache")
    change_file(path, describe=with_second(heads=[[3, 4, "torch.float16"]] * 2))
    assert_refused(path, cache, twin, "fit together")


def test_a_file_without_rows_is_refused(tmp_path):
    saved, cache, twin = both(lambda: RollingCache(5))
    path = saved.save(tmp_path / "cache")
    names = [f"{layer}.{name}" for layer in (0, 1) for name in ("keys", "values", "key_index")]
    change_file(
        path, {name: lambda old: old[:0] for name in names}, lambda old: [{**one, "lengths": []} for one in old]
    )
    assert_refused(path, cache, twin, "fit together")


def test_a_file_of_ours_without_a_description_is_refused(tmp_path):
    _, cache, twin = both(GrowingCache)
    save_file({"weight": torch.zeros(3)}, tmp_path / "cache", metadata={"format": FORMAT})
    assert_refused(tmp_path / "cache", cache, twin, "cannot be read as a file of caches: 'caches'")


@pytest.mark.parametrize("wrap", [lambda one: one, QuantizedCache], ids=["as it is", "quantised"])
@pytest.mark.parametrize("num_blocks", [6, None])
def test_rows_that_shared_blocks_share_them_again(num_blocks, wrap, tmp_path):
    def make():
        return ModelCache([GrowingCache(), wrap(PagedCache(4, num_blocks=num_blocks))])

    saved, cache = make(), make()
    for layer in saved:
        layer.update(*chunk(14, batch=1))  # 4 blocks, the last half full
        layer.reorder([0] * 4)
    saved.layers[1].crop([14, 14, 13, 8])  # one shares but the beginning
    cache.load(saved.save(tmp_path / "cache"))
    assert cache.allocated_bytes <= saved.allocated_bytes
    for seed in range(2):
        for one, other in zip(saved, cache, strict=True):
            assert_same(one, other)
        for one in (saved, cache):
            rows = [0, 0, 2] if seed else [0, 1, 3]
            one.reorder(rows)  # two write to what they share
            for layer in one:
                layer.update(*chunk(1, batch=3, seed=seed))


def test_a_ring_whose_every_token_was_taken_back_goes_on_where_it_was(tmp_path):
    saved, other = ModelCache([RollingCache(1)]), ModelCache([RollingCache(1)])
    saved.layers[0].update(*chunk(5))
    saved.crop(4)
    other.load(saved.save(tmp_path / "cache"))
    for seed in range(2):
        assert_same(saved.layers[0], other.layers[0])
        for cache in (saved, other):
            cache.layers[0].update(*chunk(1, seed=seed))


def test_what_is_no_number_comes_back_to_the_bit(tmp_path):
    saved, other = ModelCache([GrowingCache()]), ModelCache([GrowingCache()])
    keys, values = chunk(3)
    keys[0, 0, 0], values[0, 0, 1] = float("nan"), float("-inf")
    keys[1, 0, 0] = -0.0
    saved.layers[0].update(keys, values)
    other.load(saved.save(tmp_path / "cache"))
    view = other.layers[0].view()
    assert torch.equal(view.keys.view(torch.int32), keys.view(torch.int32)) and torch.equal(view.values, values)


def test_a_loaded_cache_is_the_same_object_within_too(tmp_path):
    inner = GrowingCache()
    saved, other = ModelCache([fill(QuantizedCache(GrowingCache()))]), ModelCache([QuantizedCache(inner)])
    other.load(saved.save(tmp_path / "cache"))
    assert other.layers[0].cache is inner and inner.lengths == (10, 8)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cross"])  # which then waits for its source
def test_a_cache_that_has_forgotten_all_is_saved_too(kind, tmp_path):
    saved, other = ModelCache([fill(KINDS[kind]())]), ModelCache([KINDS[kind]()])
    saved.reset()
    other.load(saved.save(tmp_path / "cache"))
    for cache in (saved, other):
        cache.layers[0].update(*chunk(4, seed=3))
    assert_same(saved.layers[0], other.layers[0])


@pytest.mark.parametrize(
    "device", ["meta", "nonsense", *(["cuda", "mps"] if not torch.accelerator.is_available() else [])]
)
def test_a_device_that_is_not_there_is_refused_and_changes_nothing(device, tmp_path):
    saved, cache, twin = both(GrowingCache)
    path = saved.save(tmp_path / "cache")
    with pytest.raises(ConfigError, match=f"device must be one of this machine that holds numbers; got '{device}'"):
        cache.load(path, device=device)
    for one, other in zip(cache, twin, strict=True):
        assert_same(one, other)


def test_the_file_is_read_to_the_device_that_was_asked_for(tmp_path, monkeypatch):
    saved, other = ModelCache([fill(GrowingCache())]), ModelCache([GrowingCache()])
    path = saved.save(tmp_path / "cache")
    asked = []

    def note(*given, device, **others):
        asked.append(device)
        return safe_open(*given, device="cpu", **others)

    monkeypatch.setattr("headwise.caches.storage.safe_open", note)
    other.load(path, device=torch.device("cpu", 0))
    assert asked == ["cpu:0"]
    assert_same(saved.layers[0], other.layers[0])


@pytest.mark.parametrize("dtypes", [("int8",) * 2, ("complex64",) * 2, ("float8_e4m3fn",) * 2, ("float32", "float16")])
def test_what_could_not_be_loaded_is_not_saved(dtypes, tmp_path):
    cache = ModelCache([GrowingCache()])
    keys, values = (one.to(getattr(torch, dtype)) for one, dtype in zip(chunk(3), dtypes, strict=True))
    cache.layers[0].update(keys, values)
    with pytest.raises(ConfigError, match=f"one dtype to be saved.*; got torch.{dtypes[0]} and torch.{dtypes[1]}"):
        cache.save(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


def test_layers_of_other_rows_are_not_saved(tmp_path):
    cache = ModelCache([GrowingCache(), GrowingCache()])
    for layer, batch in zip(cache, (2, 3), strict=True):
        layer.update(*chunk(3, batch=batch))
    with pytest.raises(ConfigError, match=r"must have as many rows each; got .2, 3."):
        cache.save(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


def test_no_place_but_a_file_is_written_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = ModelCache([fill(GrowingCache())])
    (tmp_path / "file").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path in (".", "", "/", "..", "zero\0byte", "file/x", "n" * 256, tmp_path / "absent" / "cache", "pipe", "loop"):
        with pytest.raises(OutputError) as caught:
            cache.save(path)
        assert "\n" not in str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "loop", "pipe"]
    assert (tmp_path / "file").read_text() == "old" and (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("length", [249, 250, 255])
def test_a_long_name_that_the_file_system_can_hold_is_written(length, tmp_path):
    saved, other = ModelCache([fill(GrowingCache())]), ModelCache([GrowingCache()])
    other.load(saved.save(tmp_path / ("n" * length)))
    assert_same(saved.layers[0], other.layers[0])


def test_a_file_keeps_its_mode_and_a_link_stays_one(tmp_path):
    cache = ModelCache([fill(GrowingCache())])
    umask = os.umask(0o027)
    try:
        path = cache.save(tmp_path / "cache")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    for mode in (0o644, 0o600):
        path.chmod(mode)
        assert stat.S_IMODE(cache.save(path).stat().st_mode) == mode
    (tmp_path / "link").symlink_to("cache")
    path.write_bytes(b"")
    assert cache.save(tmp_path / "link") == tmp_path / "link"
    assert (tmp_path / "link").is_symlink() and path.stat().st_size > 0


def test_threads_may_save_to_one_path_and_one_of_them_is_read(tmp_path):
    errors = []

    def save(num_tokens):
        cache = ModelCache([GrowingCache()])
        cache.layers[0].update(*chunk(num_tokens))
        try:
            for _ in range(8):
                cache.save(tmp_path / "cache")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(num_tokens,)) for num_tokens in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other = ModelCache([GrowingCache()])
    other.load(tmp_path / "cache")
    assert errors == [] and other.seq_len in (3, 5, 7)
    assert [entry.name for entry in tmp_path.iterdir()] == ["cache"]


def test_what_a_killed_process_would_leave_is_ours_by_its_name_and_the_old_file_is_whole(tmp_path, monkeypatch):
    saved, other = ModelCache([fill(GrowingCache())]), ModelCache([GrowingCache()])
    path = saved.save(tmp_path / "cache")
    before = path.read_bytes()
    seen = []

    def look(*_, **__):
        seen.extend(entry.name for entry in tmp_path.iterdir() if entry != path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", look)
    with pytest.raises(OutputError, match="No space left on device"):
        saved.save(path)
    assert len(seen) == 1 and seen[0].startswith(".headwise-") and seen[0].endswith(".part")
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["cache"]
    other.load(path)


def test_what_the_writer_of_the_format_says_is_told_in_one_line(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def fail(*_, **__):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("headwise.caches.storage.save_file", fail)
    with pytest.raises(OutputError, match=r"cannot write .*cache.*No space left on device"):
        ModelCache([fill(GrowingCache())]).save(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path):
    cache = ModelCache([fill(GrowingCache())])
    with pytest.raises(OutputError, match=r"cannot write|is a folder"):
        cache.save(tmp_path / "absent" / "cache")
    with pytest.raises(OutputError, match=r"cannot write|is a folder"):
        cache.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="must have had an update"):
        ModelCache([GrowingCache()]).save(tmp_path / "cache")
