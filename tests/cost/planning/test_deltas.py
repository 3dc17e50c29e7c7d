"""Each row of the changes against the same change made by hand and predicted again."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.memory import predict_step
from headwise.cost.planning.catalogue import CATALOGUE
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.option import Made, Place
from headwise.cost.planning.rank import list_changes, try_option
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.sharding.predict import predict_sharded_step
from headwise.cost.sharding.results import SHARDINGS, Sharding
from headwise.cost.sharding.travel import travels
from headwise.cost.step_flops import step_flops
from headwise.cost.workload import Lora, Workload
from headwise.masks.patterns import SlidingWindow


def shallow(name, num_layers, **settings):
    config = preset(name, **settings)
    return replace(config, blocks=config.blocks[:num_layers])


BERT = shallow("bert-base", 5, head=True)
QWEN = shallow("qwen3-4b", 3)
GPT2 = shallow("gpt2", 3)
BERT_STEP = Workload(batch=12, seq=384, attention="eager", loss="cross_entropy", compute_capability=(7, 0))
QWEN_STEP = Workload(batch=1, seq=1024, attention="eager", loss="cross_entropy", precision="amp-bf16")
DECODE = Workload(batch=3, seq=2048, phase="decode", precision="bf16")


def with_heads(config, num_heads, num_kv_heads, head_dim):
    def block(old):
        heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "v_head_dim": head_dim}
        return replace(old, attention=replace(old.attention, **heads, scale=head_dim**-0.5))

    return replace(config, blocks=tuple(block(old) for old in config.blocks))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GPT2, "LoRA of rank 16 on fused q, k and v"),
        (QWEN, "LoRA of rank 16 on q and v"),
        (shallow("deepseek-v3", 1), None),
    ],
    ids=["gpt2", "qwen3", "deepseek-v3"],
)
def test_adapters_are_named_by_the_projections_that_get_them(config, words):
    row = try_one("lora", Setup(config=config, workload=Workload(batch=1, seq=8)), num_devices=1)
    assert row.applies is (words is not None)
    assert row.change == words if words else row.why.startswith("the model has no projections of queries and values")


def with_window(config, window_size):
    mask = SlidingWindow(window_size)
    blocks = tuple(replace(old, attention=replace(old.attention, mask=mask)) for old in config.blocks)
    return replace(config, blocks=blocks)


def bert_by_hand():
    step = BERT_STEP
    yield "sdpa", BERT, replace(step, attention="sdpa")
    yield "checkpoint-selective", BERT, replace(step, checkpoint="selective")
    yield "checkpoint-full", BERT, replace(step, checkpoint="full")
    yield "amp-fp16", BERT, replace(step, precision="amp-fp16")
    yield "fp16", BERT, replace(step, precision="fp16")
    yield "chunked-cross-entropy", BERT, replace(step, loss="chunked_cross_entropy")
    yield "fused-step", BERT, replace(step, optimizer_step="fused")
    yield "adamw8bit", BERT, replace(step, optimizer="adamw8bit")
    yield "heads", with_heads(BERT, 6, 6, 128), step
    yield "dropout", BERT, replace(step, dropout=False)
    yield "freeze", BERT, replace(step, frozen_layers=2)
    yield "lora", BERT, replace(step, lora=Lora(rank=16, targets=("q_proj", "v_proj")))
    yield "accumulate", BERT, replace(step, batch=6, accumulation=2)
    yield "batch", BERT, replace(step, batch=6)
    yield "seq", BERT, replace(step, seq=192)


def qwen_by_hand():
    step = QWEN_STEP
    yield "sdpa", QWEN, replace(step, attention="sdpa")
    yield "checkpoint-full", QWEN, replace(step, checkpoint="full")
    yield "bf16", QWEN, replace(step, precision="bf16")
    yield "fp16", QWEN, replace(step, precision="fp16")
    yield "heads", with_heads(QWEN, 16, 4, 256), step
    yield "kv-heads", with_heads(QWEN, 32, 2, 128), step
    yield "window", with_window(QWEN, 128), step
    yield "lora", QWEN, replace(step, lora=Lora(rank=16, targets=("q_proj", "v_proj")))


def decode_by_hand():
    yield "kv-int8", QWEN, replace(DECODE, kv_cache="int8")
    yield "kv-heads", with_heads(QWEN, 32, 2, 128), DECODE


def roomy(name):
    """A device on which everything fits, so that sizes are halved."""
    return replace(DEVICES[name], memory_bytes=2**50)


def try_one(key, setup, *, num_devices):
    option = next(option for option in CATALOGUE if option.key == key)
    return try_option(option, setup, Place(Judge(ClosedForm(), roomy("t4")), num_devices))


CASES = [
    *(("v100-32gb", BERT, BERT_STEP, *case) for case in bert_by_hand()),
    *(("a100-80gb", QWEN, QWEN_STEP, *case) for case in qwen_by_hand()),
    *(("a100-80gb", QWEN, DECODE, *case) for case in decode_by_hand()),
]


@pytest.fixture(scope="module")
def rows():
    """The changes of each setup by key, tried once."""
    known = {}

    def find(device_name, config, workload):
        if (config.name, workload) not in known:
            setup = Setup(config=config, workload=workload)
            changes = list_changes(ClosedForm(), setup, roomy(device_name), num_devices=4)
            known[config.name, workload] = {change.key: change for change in changes}
        return known[config.name, workload]

    return find


@pytest.mark.parametrize(("device_name", "config", "workload", "key", "changed", "step"), CASES, ids=lambda case: "")
def test_a_row_is_what_the_change_made_by_hand_is_predicted_to_do(
    rows, device_name, config, workload, key, changed, step
):
    row = rows(device_name, config, workload)[key]
    before, after = predict_step(config, workload).peak_bytes, predict_step(changed, step).peak_bytes
    assert row.applies, row.why
    assert (row.peak_bytes, row.frees_bytes) == (after, before - after)
    flops = [step_flops(*pair).hardware.dense for pair in ((config, workload), (changed, step))]
    tokens = [1 if one.phase == "decode" else one.seq for one in (workload, step)]
    tokens = [n * one.batch * one.accumulation for n, one in zip(tokens, (workload, step), strict=True)]
    assert row.extra_flops_fraction == pytest.approx(flops[1] / tokens[1] / (flops[0] / tokens[0]) - 1, abs=1e-12)
    assert (row.other_gpus, row.travels) == (0, ())


@pytest.mark.parametrize("kind", SHARDINGS)
def test_a_sharding_is_that_of_one_device_with_its_share_of_the_texts(kind):
    config, step = GPT2, Workload(batch=12, seq=256)
    row = try_one(kind, Setup(config=config, workload=step), num_devices=4)
    share = replace(step, batch=3) if kind.startswith("zero") else step
    sharding = Sharding(kind=kind, num_devices=4)
    assert row.applies, row.why
    assert row.peak_bytes == predict_sharded_step(config, share, sharding).peak_bytes
    assert row.travels == travels(config, share, sharding)
    assert (row.other_gpus, row.list, row.extra_flops_fraction) == (3, "same", 0)


@pytest.mark.parametrize(
    ("batch", "accumulation", "share", "passes", "listed"),
    [(8, 3, 2, 3, "same"), (3, 8, 3, 2, "same"), (3, 1, 3, 1, "alters")],
)
def test_texts_are_shared_out_where_they_can_be_and_else_there_are_more(batch, accumulation, share, passes, listed):
    config, step = GPT2, Workload(batch=batch, seq=64, accumulation=accumulation)
    row = try_one("zero3", Setup(config=config, workload=step), num_devices=4)
    expected = replace(step, batch=share, accumulation=passes)
    assert row.peak_bytes == predict_sharded_step(config, expected, Sharding(kind="zero3", num_devices=4)).peak_bytes
    assert row.list == listed
    assert row.extra_flops_fraction == pytest.approx(0)


def test_every_change_has_a_row_and_a_reason_where_it_cannot_be_made(rows):
    for case in (("v100-32gb", BERT, BERT_STEP), ("a100-80gb", QWEN, QWEN_STEP), ("a100-80gb", QWEN, DECODE)):
        found = rows(*case)
        assert set(found) == {option.key for option in CATALOGUE}
        for row in found.values():
            assert row.applies or (row.why and row.frees_bytes == 0 and row.peak_bytes is None and row.fits is None)
            assert "\n" not in (row.why or "")


@pytest.mark.parametrize("option", CATALOGUE, ids=lambda option: option.key)
def test_a_change_with_the_same_result_goes_over_as_many_tokens(option):
    step = Workload(batch=12, seq=256, accumulation=3, attention="eager", optimizer="sgd", loss="cross_entropy")
    setup = Setup(config=GPT2, workload=step)
    made = option.make(setup, Place(Judge(ClosedForm(), roomy("a100-80gb")), 4))
    if isinstance(made, Made) and made.list == "same":
        assert made.setup.num_tokens == setup.num_tokens == 12 * 256 * 3


def test_a_decode_goes_over_one_token_of_each_text():
    assert Setup(config=GPT2, workload=Workload(batch=5, seq=100, phase="decode")).num_tokens == 5


def test_keys_are_unique():
    assert len({option.key for option in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("key", "listed"),
    [
        ("sdpa", "same"),
        ("checkpoint-full", "same"),
        ("amp-fp16", "same"),
        ("accumulate", "same"),
        ("chunked-cross-entropy", "same"),
        ("fused-step", "same"),
        ("fp16", "alters"),
        ("adamw8bit", "alters"),
        ("lora", "alters"),
        ("freeze", "alters"),
        ("dropout", "alters"),
        ("heads", "alters"),
        ("batch", "alters"),
        ("seq", "alters"),
    ],
)
def test_the_list_says_whether_the_result_is_the_same(rows, key, listed):
    assert rows("v100-32gb", BERT, BERT_STEP)[key].list == listed
