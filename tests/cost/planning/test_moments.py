import pytest

from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger
from headwise.cost.planning.moments import describe_moment, largest_at_peak, timeline
from headwise.cost.results import Ledger, LedgerEntry
from headwise.cost.workload import Workload


def entry(name, kind, num_bytes, born, freed):
    return LedgerEntry(
        name=name, kind=kind, bytes=num_bytes, shape=(num_bytes,), dtype="uint8", owner="x", born=born, freed=freed
    )


LEDGER = Ledger(
    moments=("forward", "loss", "backward"),
    entries=(
        entry("weight", "parameter", 3, 0, None),
        entry("kept", "saved", 5, 0, 2),
        entry("passing", "temporary", 7, 1, 2),
        entry("slope", "gradient", 11, 2, None),
        entry("moment", "optimizer", 13, 0, None),
        entry("ids", "input", 17, 0, 1),
    ),
)


def test_each_moment_has_the_bytes_of_each_kind():
    rows = [(m.moment, m.parameter, m.gradient, m.optimizer, m.saved, m.temporary, m.input) for m in timeline(LEDGER)]
    assert rows == [
        ("forward", 3, 0, 13, 5, 0, 17),
        ("loss", 3, 0, 13, 5, 7, 0),
        ("backward", 3, 11, 13, 0, 0, 0),
    ]


@pytest.mark.parametrize(
    "step",
    [
        {"loss": "cross_entropy", "checkpoint": "full"},
        {"phase": "prefill"},
        {"phase": "decode", "kv_cache": "int8"},
    ],
)
def test_the_kinds_of_every_moment_add_up_to_what_is_alive(step):
    ledger = predict_ledger(preset("gpt2"), Workload(batch=3, seq=17, **step))
    assert tuple(moment.total for moment in timeline(ledger)) == ledger.bytes_by_moment
    assert tuple(moment.moment for moment in timeline(ledger)) == ledger.moments


@pytest.mark.parametrize(("phase", "first"), [("prefill", 0), ("decode", 16)])
def test_what_is_kept_between_calls_is_a_kind_of_its_own(phase, first):
    """12 layers keep a key and a value of 768 numbers for each of 3 x 17 tokens; a decode finds all but the last."""
    per_token = 12 * 2 * 768 * 4 * 3
    moments = timeline(predict_ledger(preset("gpt2"), Workload(batch=3, seq=17, phase=phase)))
    assert (moments[0].kv_cache, moments[-1].kv_cache) == (first * per_token, 17 * per_token)
    assert moments[0].input < 1000  # token ids alone
    of_layer = timeline(predict_ledger(preset("gpt2"), Workload(batch=3, seq=17, phase=phase, kv_cache="int8")))
    assert of_layer[-1].kv_cache == 17 * per_token // 4 + 17 * 3 * 12 * 2 * 12 * 4  # and a scale for each head
    assert all(moment.kv_cache == 0 for moment in timeline(predict_ledger(preset("gpt2"), Workload(batch=3, seq=17))))


def test_the_largest_at_the_peak_are_alive_then_and_in_order():
    assert LEDGER.moments[LEDGER.peak] == "forward"
    assert [one.name for one in largest_at_peak(LEDGER, 3)] == ["ids", "moment", "kept"]
    assert len(largest_at_peak(LEDGER)) == 4


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("forward: embeddings", "the forward pass, in the embeddings"),
        ("forward: layer 0", "forward of the first layer (layer 0)"),
        ("forward: layer 5", "forward of layer 5"),
        ("forward: head", "the end of the forward pass, in the head"),
        ("loss", "the loss"),
        ("backward: loss", "the start of the backward pass, at the loss"),
        ("backward: head", "the start of the backward pass, in the head"),
        ("backward: layer 11", "backward of the last layer (layer 11)"),
        ("backward: layer 0", "backward of the first layer (layer 0)"),
        ("backward: embeddings", "the backward pass, in the embeddings"),
        ("optimizer step", "the optimizer step"),
        ("something else", "something else"),
        ("", ""),
    ],
)
def test_moments_in_words(label, words):
    assert describe_moment(label, preset("bert-base")) == words


def test_an_encoder_has_layers_of_its_own():
    t5 = preset("t5-small")
    assert describe_moment("backward: encoder layer 5", t5) == "backward of the last encoder layer (encoder layer 5)"
    assert describe_moment("backward: layer 5", t5) == "backward of the last layer (layer 5)"
    assert describe_moment("forward: encoder norm", t5) == "the forward pass, in the encoder's last norm"
    assert describe_moment("backward: layer 5") == "backward of layer 5"


@pytest.mark.parametrize("name", ["t5-small", "vit-b-16", "llama-3.2-1b"])
def test_every_moment_of_a_ledger_has_words_of_its_own(name):
    config = preset(name)
    seq = config.patches.num_tokens if config.patches else 8
    moments = predict_ledger(config, Workload(batch=1, seq=seq)).moments
    words = [describe_moment(moment, config) for moment in moments]
    assert len(set(words)) == len(moments)
    assert not any(":" in text for text in words)
