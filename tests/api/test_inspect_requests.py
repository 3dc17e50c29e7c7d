"""What is asked of `headwise.inspect`: the model in hand itself, models that compare, and wrong values in one line."""

import json
import subprocess
import sys
import threading

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

import headwise
from headwise.api.looking import RANDOM_PIXELS
from headwise.errors import ModelError, OutputError, TextError
from headwise.inspection.texts.windows import UNKNOWN_LENGTH

WORDS = ["<pad>", "</s>", "<unk>", *"abcdefghijklmnopq"]
VOCAB, HEADS = len(WORDS), 3
TEXT = "a b c d e f g h"


def tokenizer():
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **named)


def t5(seed=0):
    torch.manual_seed(seed)
    sizes = {"d_model": 12, "d_kv": 4, "d_ff": 7, "num_layers": 2, "num_heads": HEADS, "vocab_size": VOCAB}
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **ids)).eval()


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "intermediate_size": 7, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    config = transformers.LlamaConfig(vocab_size=VOCAB, max_position_embeddings=64, eos_token_id=None, **sizes)
    return transformers.LlamaForCausalLM(config).eval()


def vit():
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": HEADS, "intermediate_size": 7}
    return transformers.ViTModel(transformers.ViTConfig(image_size=12, patch_size=4, **sizes)).eval()


def look(model, **asked):
    return headwise.inspect(model, tokenizer=tokenizer(), **{"texts": [TEXT], **asked})


def test_a_module_in_hand_is_looked_at_itself_in_its_own_dtype_and_is_as_it_was():
    model = llama().to(torch.bfloat16).train()
    model.lock = threading.Lock()  # which nobody can copy
    seen = []
    model.model.register_forward_hook(
        lambda module, args, output: seen.append((module.training, output.last_hidden_state.dtype))
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = look(model)
    assert set(seen) == {(False, torch.bfloat16)}
    assert all(part.training for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any("float32" in note for note in result.notes)
    seen.clear()
    headwise.explain(model, tokenizer=tokenizer(), sentence=TEXT)
    assert set(seen) == {(False, torch.bfloat16)}


def test_what_is_made_here_is_of_the_models_own_dtype():
    """Random ids, vectors and pixels: what is of float32 would meet weights of float64, and be refused."""
    assert len(headwise.inspect(llama().double()).heads) == 2 * HEADS
    seeing = headwise.inspect(vit().double())
    assert len(seeing.heads) == HEADS and RANDOM_PIXELS in seeing.notes
    assert len(headwise.inspect(vit().double(), image=torch.zeros(3, 20, 12, dtype=torch.uint8)).heads) == HEADS
    own = nn.TransformerEncoderLayer(12, HEADS, 7, batch_first=True).double()
    assert len(headwise.inspect(own).heads) == HEADS
    assert headwise.explain(own, layer=0, head=0, query=1).layer == 0


def test_nothing_is_said_of_predictions_where_heads_are_looked_at():
    result = headwise.inspect(nn.TransformerEncoderLayer(12, HEADS, 7, batch_first=True))
    assert not any("predicted" in note for note in result.notes)


def test_models_that_cannot_read_the_same_are_refused_by_name():
    with pytest.raises(
        ModelError, match=r"LlamaForCausalLM has one stack of layers, T5ForCond.* is an encoder-decoder"
    ):
        look(llama(), against=t5())
    with pytest.raises(
        ModelError, match=r"T5ForCond.* is an encoder-decoder, LlamaForCausalLM has one stack of layers"
    ):
        look(t5(), against=llama(), targets=["i j"])
    with pytest.raises(ModelError, match="LlamaForCausalLM reads input_ids, ViTModel pixel_values"):
        look(llama(), against=vit())


def test_a_comparison_says_which_stack_is_compared_and_the_decoder_writes_nothing(monkeypatch):
    monkeypatch.setattr("headwise.inspection.texts.pairs.generated_ids", None)
    result = look(t5(), against=t5(seed=1))
    assert result.stack == result.others[0].inspection.stack == "encoder"
    assert "Compared are the heads of the stack encoder alone; give stack to compare those of another." in result.notes
    assert not any("decoder reads" in note for note in result.notes)
    assert str(result).splitlines()[0] == "T5ForConditionalGeneration: encoder"
    one = look(t5(), targets=["i j"])
    assert result.heads == one.heads
    other = look(t5(), against_texts=["c d e"])
    assert str(other).splitlines()[0] == "T5ForConditionalGeneration: encoder, text in hand"
    inputs = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[0, 7]])}
    plain = headwise.inspect(t5(), inputs=inputs, against=t5(seed=1))
    assert any("stack encoder alone" in note for note in plain.notes)


def test_a_stack_that_is_shown_alone_is_named_and_cross_attention_has_no_positional_roles():
    said = " ".join(str(look(t5(), targets=["i j"], stack="cross")).split())
    assert "T5ForConditionalGeneration: cross 6 heads" in said and "which read those of another text" in said
    assert "positional role" not in said
    assert "T5ForConditionalGeneration: decoder" in str(look(t5(), targets=["i j"], stack="decoder"))


def test_a_probe_names_the_stack_that_it_is_of():
    asked = {"texts": [TEXT], "num_repeats": 1, "num_random": 5}
    probe = headwise.probe_roles(t5(), tokenizer(), stack="encoder", untrained=t5(seed=1), **asked)
    assert probe.stack == probe.to_dict()["stack"] == "encoder"
    said = probe.to_text()
    assert "among 6 heads of the stack encoder, read on" in said
    assert "Roles are probed in the stack encoder alone, not in decoder and cross." in said
    assert headwise.probe_roles(llama(), tokenizer(), untrained=llama(), **asked).stack is None


def test_a_model_without_a_length_reads_as_many_tokens_at_once_as_fit(monkeypatch):
    """A pass over a whole book takes memory in the square of its tokens."""
    long = " ".join("abcdefgh" * 100)
    result = look(t5(), texts=[long], targets=["a"])
    assert result.window == UNKNOWN_LENGTH and "1 of 1 texts were cut at 512 tokens." in result.notes
    assert look(t5(), texts=[long], targets=["a"], max_length=601).window == 601
    torch.manual_seed(0)
    bloom = transformers.BloomModel(transformers.BloomConfig(hidden_size=12, n_layer=1, n_head=HEADS, vocab_size=VOCAB))
    windows = look(bloom.eval(), texts=[long])
    assert (windows.window, windows.num_windows, windows.num_tokens) == (UNKNOWN_LENGTH, 2, 802)


def test_weights_that_are_nan_are_told():
    model = llama()
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight.fill_(float("nan"))
    (note,) = (note for note in look(model).notes if "NaN" in note)
    assert note.startswith("In layer 1 head 0, the most of 3 heads with such queries, 9 of 9 queries have NaN")


def test_half_of_a_surrogate_pair_is_told_in_one_line():
    for asked in ({"texts": [TEXT, "a \udce9"]}, {"against_texts": ["a \udce9"]}):
        with pytest.raises(TextError, match=r"a text must be Unicode; text . of .*texts holds half of a surrogate"):
            look(llama(), **asked)
    with pytest.raises(TextError, match="a text must be Unicode"):
        headwise.explain(llama(), tokenizer=tokenizer(), sentence="a \udce9")


@pytest.mark.parametrize("ending", [".csv", ".svg", ".png"])
def test_a_file_that_is_read_is_never_written_over(tmp_path, ending):
    own, link, free = tmp_path / f"own{ending}", tmp_path / f"link{ending}", tmp_path / f"free{ending}"
    own.write_text(TEXT)
    link.symlink_to(own)
    for asked in ({"text": own}, {"text": [own]}, {"against_text": own}, {"target": [str(own)]}, {"relations": own}):
        for out in (own, link):
            with pytest.raises(OutputError, match=f"out must be another file than {next(iter(asked))}, which is read"):
                headwise.inspect(llama(), tokenizer=tokenizer(), **asked, out=out)
    with pytest.raises(OutputError, match="out must be another file than image"):
        headwise.inspect(vit(), image=own, out=link)
    assert own.read_text() == TEXT
    assert headwise.inspect(llama(), tokenizer=tokenizer(), text=own, out=free).page == str(free)


WRONG = {
    "tokenizer": (3, "tokenizer"),
    "text": (3, "text must be a file or several"),
    "texts": ([3], "texts must be a sequence of at least one text"),
    "targets": ("abc", "targets must be a sequence"),
    "target": ([3], "target must be a file or several"),
    "generate": (2.5, "generate must be a whole number"),
    "inputs": ([1], "inputs must be a mapping"),
    "processor": (3, "processor must be called"),
    "stack": (3, "stack must be a string"),
    "against": (3, "MODEL must be"),
    "against_text": (3, "against_text must be a file or several"),
    "against_texts": ([], "against_texts must be a sequence"),
    "window": ("8", "window must be a whole number"),
    "max_length": (True, "max_length must be a whole number"),
    "map_tokens": (-1, "map_tokens must be between 0"),
    "costly": ("yes", "costly must be True or False"),
    "detail": ({}, "detail must be of type Detail"),
    "relations": (3, "relations must be a path"),
    "roles": (1, "roles must be True or False"),
    "out": (3, "out must be a path"),
    "progress": (3, "progress must be a function"),
}
WRONG_PROBES = {
    "vocabulary": ("abc", "a vocabulary must be a tokenizer or a number of ids"),
    "texts": ([3], "texts must be a sequence"),
    "stack": (3, "stack must be a string"),
    "window": ("8", "window must be a whole number"),
    "num_repeats": (2.5, "num_repeats must be a whole number"),
    "num_random": (0, "num_random must be between 1"),
    "first_id": ("a", "first_id must be a whole number"),
    "untrained": (3, "Module"),
    "seed": ("a", "seed must be a whole number"),
    "batch_size": (0, "batch_size must be between 1"),
    "progress": (3, "progress must be"),
}
SCRIPT = """
import json, sys
import headwise
sys.path.insert(0, sys.argv[1])
from test_inspect_requests import WRONG, WRONG_PROBES, llama, tokenizer
said = {}
def ask(door, name, call):
    try:
        call()
        said[door + name] = "nothing was said"
    except headwise.HeadwiseError as error:
        said[door + name] = str(error)
    except Exception as error:
        said[door + name] = f"raised {type(error).__name__}: {error}"
for name, (value, _) in WRONG.items():
    words = {} if name in ("texts", "text", "inputs", "target", "targets") else {"texts": ["a b"]}
    known = {"tokenizer": tokenizer(), **words, name: value}
    ask("inspect ", name, lambda: headwise.inspect(llama(), **known))
for name, (value, _) in WRONG_PROBES.items():
    known = {"vocabulary": tokenizer(), name: value}
    ask("probe ", name, lambda: headwise.probe_roles(llama(), **known))
print(json.dumps(said))
"""


def test_a_value_of_another_type_is_one_clear_line():
    """In a process of its own: as the tests run, annotations are checked before the door is."""
    here = __file__.rpartition("/")[0]
    ran = subprocess.run([sys.executable, "-c", SCRIPT, here], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    expected = {f"inspect {name}": text for name, (_, text) in WRONG.items()}
    expected |= {f"probe {name}": text for name, (_, text) in WRONG_PROBES.items()}
    assert set(said) == set(expected)
    wrong = {name: said[name] for name, text in expected.items() if text not in said[name] or "\n" in said[name]}
    assert wrong == {}
