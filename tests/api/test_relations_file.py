"""Relations of a user's file, read from a small BERT beside an untrained one."""

import json
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from headwise.api.inspect import inspect
from headwise.api.looking import MAIN, Read, look_at_stacks
from headwise.api.relations_file import with_relations
from headwise.cli.main import main
from headwise.errors import TextError
from headwise.loading.module import LoadedModule

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "saw", "it", "and", "mouse")
TEXTS = ("the cat saw the mouse", "it saw the cat and it")


@pytest.fixture(scope="module")
def loaded():
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=10, hidden_size=12, num_attention_heads=3, num_hidden_layers=2, intermediate_size=13,
        max_position_embeddings=17,
    )  # fmt: skip
    model = BertModel(config).eval()
    return LoadedModule(
        name="small", module=model, tokenizer=PreTrainedTokenizerFast(tokenizer_object=words, **names), config=None
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "relations.json"
    path.write_text(
        json.dumps({"pronoun and noun": [[1, ["it", 2], "cat"]], "verb": [["cat", "saw"], [1, "cat", "saw"]]})
    )
    return path


def test_relations_of_a_file_are_followed_as_exact_weights_say(loaded, file):
    read = with_relations(loaded, Read(texts=TEXTS), file)
    found = look_at_stacks(loaded, read)[MAIN].relations
    assert [(each.name, each.num_pairs, each.best_offset) for each in found] == [
        ("pronoun and noun", 1, -2),
        ("verb", 2, 1),
    ]
    assert found[1].offset_share == 0.5
    # [CLS] it saw the cat and it [SEP]: "it" the second time is token 6, "cat" token 4
    ids = torch.tensor([[2, 7, 6, 4, 5, 8, 7, 3]])
    eager = BertModel(loaded.module.config)
    eager.set_attn_implementation("eager")
    eager.load_state_dict(loaded.module.state_dict())
    maps = eager.eval()(input_ids=ids, output_attentions=True).attentions
    for head in found[0].heads:
        row = maps[head.layer][0, head.head, 6]
        # float32 weights of one softmax, computed in two ways: some units of 2^-24 apart
        assert head.weight == pytest.approx(row[4].item(), abs=1e-6)
        assert head.share == float(row.argmax() == 4)


def test_an_untrained_model_is_the_null_and_torchs_generator_stays(loaded, file):
    before = torch.get_rng_state()
    read = with_relations(loaded, Read(texts=TEXTS), file)
    assert torch.equal(torch.get_rng_state(), before)
    shares = [head.share for head in read.detail.null.relations[0].heads]
    found = look_at_stacks(loaded, read)[MAIN].relations[0]
    assert [head.null_share for head in found.heads] == shares and len(shares) == 6
    weights = [head.weight for head in read.detail.null.relations[0].heads]
    assert weights != [head.weight for head in found.heads]  # it is another model


def test_a_window_that_ends_before_a_word_is_told(loaded, file):
    with pytest.raises(TextError, match="give a longer window, or shorter texts"):
        with_relations(loaded, Read(texts=TEXTS, window=5), file)


def test_what_has_no_words_has_no_relations(loaded, file):
    with pytest.raises(TextError, match="no text is read here"):
        with_relations(replace(loaded, tokenizer=None), Read(), file)
    with pytest.raises(TextError, match="no text is read here"):
        with_relations(loaded, Read(inputs={"input_ids": torch.tensor([[2, 3]])}), file)


def test_another_model_must_cut_the_words_alike(loaded, file):
    assert with_relations(loaded, Read(texts=TEXTS), file, other=loaded).detail.relations
    bare = Tokenizer.from_str(loaded.tokenizer.backend_tokenizer.to_str())
    bare.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    other = replace(loaded, name="bare", tokenizer=PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="[UNK]"))
    with pytest.raises(TextError, match="the same tokens in both models; small and bare"):
        with_relations(loaded, Read(texts=TEXTS), file, other=other)


def test_inspect_reads_a_file_of_relations_prints_and_shows_them(loaded, file, tmp_path):
    page = tmp_path / "heads.html"
    result = inspect(loaded.module, tokenizer=loaded.tokenizer, texts=TEXTS, relations=file, out=page)
    read = with_relations(loaded, Read(texts=TEXTS), file)
    assert result.relations == look_at_stacks(loaded, read)[MAIN].relations
    assert "verb: 2 pairs; always looking 1 token after follows 50% of" in str(result)
    assert "pronoun and noun" in page.read_text(encoding="utf-8")


def test_relations_are_of_the_first_texts_alone(loaded, file):
    result = inspect(
        loaded.module, tokenizer=loaded.tokenizer, texts=TEXTS, against_texts=("it and it",), relations=file
    )
    assert len(result.relations) == 2 and result.others[0].inspection.relations == ()


def test_the_command_line_takes_the_file_and_refuses_a_bad_one_in_one_line(loaded, file, tmp_path, capsys):
    folder = tmp_path / "checkpoint"
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    texts = []
    for number, text in enumerate(TEXTS):
        texts += ["--text", str(tmp_path / f"{number}.txt")]
        (tmp_path / f"{number}.txt").write_text(text)
    asked = ["inspect", str(folder), *texts, "--relations"]
    assert main([*asked, str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in answer["relations"]] == ["pronoun and noun", "verb"]
    file.write_text('{"verb": [["cat", "ate"]]}')
    assert main([*asked, str(file)]) == 2
    printed = capsys.readouterr()
    assert "text 0 has no 'ate'" in " ".join(printed.err.split()) and "Traceback" not in printed.err


def test_relations_of_a_model_whose_one_stack_is_named_are_those_without_the_name(loaded, file):
    named, plain = (
        inspect(loaded.module, tokenizer=loaded.tokenizer, texts=TEXTS, relations=file, stack=stack)
        for stack in ("self", None)
    )
    assert named.relations == plain.relations
