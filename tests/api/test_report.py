"""`headwise.make_report`: the main job, on the real checkpoint and on a user's own modules."""

import json
import re
import sys

import pytest
import torch

import headwise
from headwise.api import running
from headwise.api.report import STEPS
from headwise.errors import HeadwiseError, ModelError, OutputError, TextError
from headwise.loading.module import sample_checkpoint

# 6 layers of width 384 and feed-forward 1536 at batch 2, length 128, and the pooler on the first token
B, T, E, F = 2, 128, 384, 1536
MINILM_FORWARD_FLOPS = 2 * (6 * (4 * B * T * E * E + 2 * B * T * T * E + 2 * B * T * E * F) + B * E * E)


@pytest.fixture(scope="module")
def sample_report(tmp_path_factory):
    try:
        sample_checkpoint()
    except ModelError as error:
        pytest.skip(str(error))
    page = tmp_path_factory.mktemp("page") / "page.html"
    steps = []
    report = headwise.make_report(
        batch=B, seq=T, gpu="a100-40gb", out=page, progress=lambda name, done, total: steps.append((name, done, total))
    )
    return report, page, steps


@pytest.mark.checkpoint
def test_parameters_from_config_and_module_are_equal_to_the_last_weight(sample_report):
    parameters = sample_report[0].parameters
    assert parameters.predicted == parameters.counted
    assert parameters.counted.total == 22_713_216


@pytest.mark.checkpoint
def test_flops_predicted_and_counted_agree_exactly(sample_report):
    flops = sample_report[0].flops
    assert flops.forward == flops.counted_forward
    assert flops.forward.dense == flops.forward.attended == MINILM_FORWARD_FLOPS


@pytest.mark.checkpoint
def test_memory_predicted_and_measured_stand_beside_each_other(sample_report):
    memory = sample_report[0].memory
    assert memory.measured.parameter_bytes == memory.predicted.parameter_bytes == 4 * 22_713_216
    assert memory.saved_gap_percent == 0
    assert abs(memory.peak_gap_percent) < 2
    assert memory.kv_cache_bytes is None
    assert memory.score_matrix_bytes == 2 * 12 * 128 * 128 * 4
    assert memory.fit.device.name == "a100-40gb"
    assert memory.fit.fits == "yes"


@pytest.mark.checkpoint
def test_the_known_previous_token_head_is_shown(sample_report):
    inspection = sample_report[0].heads
    assert len(inspection.heads) == len(inspection.maps) == 6 * 12
    head = inspection.heads[2]
    assert (head.layer, head.head) == (0, 2)
    role = next(role for role in head.roles if role.name == "previous token")
    assert role.score >= 0.99
    assert role.holds


@pytest.mark.checkpoint
def test_the_page_is_whole_and_needs_nothing_from_outside(sample_report):
    report, page, _ = sample_report
    html = page.read_text(encoding="utf-8")
    assert report.page == str(page)
    assert html.startswith("<!doctype html>")
    assert html.rstrip().endswith("</html>")
    assert not re.search(r"""(?:src|href|action)=["'](?!data:|#)|url\((?!["']?data:)|@import""", html)
    assert [path.name for path in page.parent.iterdir()] == [page.name]


@pytest.mark.checkpoint
def test_the_report_turns_into_json_without_its_maps(sample_report):
    answer = json.loads(json.dumps(sample_report[0].to_dict(), allow_nan=False))
    assert {"model", "parameters", "flops", "memory", "heads", "page"} <= set(answer)
    assert {"layer", "head", "entropy", "sparsity", "distance", "sink_mass", "roles"} <= set(answer["heads"][0])
    assert answer["text"]["window"] == 128
    assert "maps" not in json.dumps(answer)


@pytest.mark.checkpoint
def test_progress_goes_through_all_steps_and_never_back(sample_report):
    steps = sample_report[2]
    names = list(dict.fromkeys(name for name, _, _ in steps))
    shares = [done / total for _, done, total in steps]
    assert names == [*STEPS, "done"]
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.fixture
def users_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "reported_models.py").write_text(
        "from torch import nn\n"
        "import headwise\n"
        "from transformers import GPT2Config, GPT2Model\n"
        "def torch_layer():\n    return nn.MultiheadAttention(22, 2, batch_first=True)\n"
        "def our_block():\n"
        "    attention = headwise.AttentionConfig(embed_dim=22, num_heads=2, mask=headwise.Causal())\n"
        "    feed_forward = headwise.FeedForwardConfig(embed_dim=22, hidden_dim=13)\n"
        "    return headwise.Block(headwise.BlockConfig(attention=attention, feed_forward=feed_forward))\n"
        "def gpt2():\n    return GPT2Model(GPT2Config(vocab_size=23, n_positions=19, n_embd=10, n_layer=2, n_head=2))\n"
        "class NoAttention(nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(3, 2)\n"
        "    def example_inputs(self, batch, seq):\n"
        "        import torch\n"
        "        return {'input': torch.zeros(batch, seq, 3)}\n",
        encoding="utf-8",
    )
    yield tmp_path
    sys.modules.pop("reported_models", None)


def test_a_users_module_is_counted_measured_and_looked_at_without_a_config(users_folder):
    report = headwise.make_report("reported_models:torch_layer", batch=3, seq=7, out="page.html")
    assert report.parameters.predicted is None
    assert report.parameters.counted.total == 4 * 22 * 22 + 4 * 22
    assert report.memory.measured.peak_bytes > 4 * report.memory.measured.parameter_bytes
    assert report.memory.fit.fits == "yes"
    assert len(report.heads.heads) == 2
    assert any("random input" in note for note in report.heads.notes)
    assert (users_folder / "page.html").exists()


def test_a_causal_block_of_ours_is_seen_to_be_causal(users_folder):
    report = headwise.make_report("reported_models:our_block", batch=3, seq=7)
    assert report.heads.is_causal
    assert report.page is None


def test_a_hugging_face_model_without_tokenizer_has_predictions_and_heads_on_random_ids(users_folder):
    report = headwise.make_report("reported_models:gpt2", batch=3, seq=7)
    assert report.parameters.predicted == report.parameters.counted
    assert report.flops.forward == report.flops.counted_forward
    assert report.memory.saved_gap_percent == 0
    assert len(report.heads.heads) == 2 * 2
    assert report.heads.is_causal


def test_a_module_without_attention_says_why_no_heads_are_shown(users_folder):
    report = headwise.make_report("reported_models:NoAttention", batch=3, seq=7)
    assert report.heads is None
    assert "heads cannot be shown" in report.heads_notes[0]
    assert report.parameters.counted.total == 8


def test_a_step_too_large_for_this_machine_is_not_tried_and_a_note_says_so(users_folder, monkeypatch):
    enough = headwise.make_report("reported_models:gpt2", batch=3, seq=7)
    step, forward = enough.memory.predicted.peak_bytes, 4 * enough.parameters.counted.total
    for memory, is_counted in ((step, True), (forward, False)):  # less than 0.8 of it would do for the step
        monkeypatch.setattr(running, "usable_ram_bytes", lambda memory=memory: memory)
        report = headwise.make_report("reported_models:gpt2", batch=3, seq=7)
        assert report.memory.measured is None
        assert any("No step was measured" in note for note in report.memory.notes)
        assert (report.flops.counted_forward is not None) == is_counted


def test_a_module_of_unknown_size_is_not_trained_where_its_weights_and_states_do_not_fit(users_folder, monkeypatch):
    layer = headwise.MultiHeadAttention(22, 2)
    needed = 4 * 4 * (4 * 22 * 22 + 4 * 22)  # weights, gradients and two states of AdamW, four bytes each
    for memory, is_measured in ((int(needed / 0.79), True), (int(needed / 0.81), False)):
        monkeypatch.setattr(running, "usable_ram_bytes", lambda memory=memory: memory)
        assert (headwise.make_report(layer, batch=3, seq=7).memory.measured is not None) == is_measured


def test_attention_written_as_matrix_products_has_unknown_pairs_and_a_note_says_why():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=23, n_positions=19, n_embd=10, n_layer=2, n_head=2)
    config._attn_implementation = "eager"
    report = headwise.make_report(transformers.GPT2Model(config), batch=3, seq=7)
    assert report.workload.attention == "eager"
    assert report.flops.counted_forward.dense == report.flops.forward.dense
    assert report.flops.counted_forward.attended is None
    assert any("multiplies its matrices itself" in note for note in report.flops.notes)


def test_weights_that_are_not_numbers_still_make_a_page_and_json(users_folder):
    layer = headwise.MultiHeadAttention(22, 2)
    layer.q_proj.weight.data.fill_(float("nan"))
    report = headwise.make_report(layer, batch=3, seq=7, out="page.html")
    answer = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert answer["heads"][0]["entropy"] is None
    assert (users_folder / "page.html").exists()


def test_a_report_prints_as_the_command_line_does(users_folder):
    text = str(headwise.make_report(headwise.MultiHeadAttention(22, 2), batch=3, seq=7))
    assert text.startswith("MultiHeadAttention\n")
    assert max(map(len, text.splitlines())) <= 80


def test_a_module_in_hand_stays_as_it_is(users_folder):
    layer = headwise.MultiHeadAttention(22, 2, dropout_p=0.5)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    random_state = torch.random.get_rng_state()
    headwise.make_report(layer, batch=3, seq=7)
    assert layer.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert torch.equal(torch.random.get_rng_state(), random_state)


def test_a_model_in_hand_with_its_tokenizer_reads_texts(users_folder):
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
    (users_folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    (users_folder / "text.txt").write_text("a b c", encoding="utf-8")
    tokenizer = transformers.BertTokenizer(vocab="vocab.txt")
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=6, num_hidden_layers=1, num_attention_heads=1, intermediate_size=5
    )
    report = headwise.make_report(transformers.BertModel(config), tokenizer=tokenizer, text="text.txt", seq=7)
    assert report.heads.tokens == ("[CLS]", "a", "b", "c", "[SEP]")


def test_what_cannot_be_done_is_said_before_anything_is_run(users_folder):
    (users_folder / "text.txt").write_text("words", encoding="utf-8")
    with pytest.raises(OutputError, match="no/such"):
        headwise.make_report("reported_models:gpt2", out="no/such/page.html")
    with pytest.raises(TextError, match="comes without one"):
        headwise.make_report("reported_models:gpt2", text="text.txt")
    with pytest.raises(TextError, match="bert-base has none"):
        headwise.make_report("bert-base", text="text.txt")
    with pytest.raises(HeadwiseError, match="no device"):
        headwise.make_report("bert-base", gpu="gtx-9000")
    assert sorted(path.name for path in users_folder.iterdir() if path.suffix == ".html") == []


def test_a_users_text_is_read_in_windows_of_the_models_length(users_folder):
    try:
        location = sample_checkpoint()
    except ModelError as error:
        pytest.skip(str(error))
    (users_folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 120, encoding="utf-8")
    report = headwise.make_report(location.text, text="text.txt", seq=16, out="page.html")
    assert report.heads.window == 512
    assert (report.heads.num_texts, report.heads.num_windows) == (1, 3)
    assert any("windows" in note for note in report.heads.notes)
    assert (users_folder / "page.html").stat().st_size < 8 * 2**20


def test_a_step_that_takes_more_memory_than_there_is_leaves_the_rest_of_the_report(monkeypatch):
    def exhausted(*args, **keywords):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes")

    for name, what in (
        ("count_flops", "No forward pass was counted"),
        ("measure_training_step", "No step was measured"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(running, name, exhausted)
            report = headwise.make_report(headwise.MultiHeadAttention(22, 2), batch=3, seq=7)
        assert any(what in note for note in (*report.flops.notes, *report.memory.notes))
        assert report.parameters.counted.total == 4 * 22 * 22 + 4 * 22


@pytest.mark.parametrize(
    ("gpu", "place", "kernel"), [("t4", "t4", "efficient"), ("here", "this machine's CPU", "flash_cpu")]
)
def test_a_prediction_names_its_device_and_the_kernel_that_runs_there(users_folder, gpu, place, kernel):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=23, n_positions=19, n_embd=16, n_layer=2, n_head=2, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0
    )
    memory = headwise.make_report(transformers.GPT2Model(config), batch=3, seq=7, gpu=gpu).memory
    assert memory.predicted_for == "this machine's CPU"
    assert any(f"On {place} attention runs torch's {kernel} kernel" in note for note in memory.notes)
    if gpu == "t4":
        assert any("got compute capability 7.5" in note for note in memory.notes)
    on_paper = headwise.make_report("gpt2", seq=7, gpu="t4").memory
    assert on_paper.predicted_for == "t4"


def test_a_module_that_cannot_be_trained_keeps_the_rest_of_the_report():
    layer = headwise.MultiHeadAttention(22, 2).requires_grad_(False)
    report = headwise.make_report(layer, batch=3, seq=7)
    assert report.memory.measured is None
    assert any("No step was measured" in note for note in report.memory.notes)
    assert report.flops.counted_forward.dense > 0
    assert report.heads is not None


def test_heads_on_example_input_respect_the_length_that_was_asked_for():
    report = headwise.make_report(headwise.MultiHeadAttention(22, 2), batch=3, seq=7)
    assert report.heads.window == 7
    assert report.heads.is_example


def test_a_config_that_asks_for_more_weights_than_its_files_hold_is_refused_before_memory_is_taken(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=6, num_hidden_layers=1, num_attention_heads=1, intermediate_size=5, num_labels=3
    )
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    raw |= {"id2label": None, "label2id": None, "num_labels": 10**9}
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(ModelError, match="must hold its weights"):
        headwise.make_report(tmp_path)
