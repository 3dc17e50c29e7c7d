"""Finding MODEL and reading its config: every form, and every way that a file can be bad."""

import json
import os

import pytest

from headwise.errors import ConfigError, HeadwiseError, ModelError
from headwise.loading.config import load_config, locate, read_json

TINY_BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 101,
    "hidden_size": 22,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 53,
    "type_vocab_size": 2,
}


@pytest.fixture
def write_config(tmp_path):
    def write(content, name="config.json"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write


def test_every_form_is_told_by_its_spelling(tmp_path, write_config):
    write_config(TINY_BERT)
    (tmp_path / "weights.gguf").write_bytes(b"GGUF")
    assert locate("bert-base").kind == "preset"
    assert locate(str(tmp_path / "config.json")).kind == "config"
    assert locate(str(tmp_path)).kind == "checkpoint"
    assert locate(str(tmp_path / "weights.gguf")).kind == "gguf"
    assert locate("package.module:make_model").kind == "python"


def test_a_preset_wins_over_a_folder_of_its_name_and_a_path_names_the_folder(tmp_path, write_config, monkeypatch):
    (tmp_path / "gpt2").mkdir()
    write_config(TINY_BERT, "gpt2/config.json")
    monkeypatch.chdir(tmp_path)
    assert locate("gpt2").kind == "preset"
    assert locate("./gpt2").kind == "checkpoint"
    assert load_config(locate("./gpt2")).name == "gpt2"


def test_a_config_file_and_its_folder_read_the_same(tmp_path, write_config):
    path = write_config(TINY_BERT)
    assert load_config(locate(str(path))) == load_config(locate(str(tmp_path)))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("bert-bass", "did you mean bert-base"),
        ("no/such/folder", "no file or folder"),
        ("missing.json", "no file or folder"),
        ("", "MODEL must be a preset name"),
        ("a\0b", "MODEL must be a preset name"),
        ("x" * 5000, "cannot be looked up"),
    ],
)
def test_what_is_not_there_is_refused_with_what_to_write_instead(model, text):
    with pytest.raises(ModelError, match=text):
        locate(model)


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"must hold a config\.json"):
        locate(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not"),
        (b'{"model_type": "bert", "hidden', "cut short"),
        (b"\x80\x00\xff", "UTF-8"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "number that no config has: one of thousands of digits$"),
        (b"PK\x03\x04 a zip archive", "cut short"),
    ],
)
def test_a_broken_file_is_one_clear_line(write_config, content, text):
    with pytest.raises(ModelError, match=text) as caught:
        load_config(locate(str(write_config(content))))
    assert "\n" not in str(caught.value)


def test_a_config_may_begin_with_a_byte_order_mark(write_config):
    plain = load_config(locate(str(write_config(TINY_BERT))))
    marked = write_config(b"\xef\xbb\xbf" + json.dumps(TINY_BERT).encode())
    assert load_config(locate(str(marked))) == plain


def test_a_config_that_is_a_pipe_or_a_link_to_itself_is_refused_for_what_it_is(tmp_path):
    for name, text in (("pipe", "is a folder, a device or a pipe"), ("loop", "cannot be read: ")):
        (tmp_path / name).mkdir()
        for place in (tmp_path / name / "config.json", tmp_path / f"{name}.json"):
            os.mkfifo(place) if name == "pipe" else place.symlink_to(place)
        with pytest.raises(ModelError, match=text):
            load_config(locate(str(tmp_path / name)))
        with pytest.raises(ModelError, match="must be a file or a folder; it is a device, a pipe or a broken link"):
            locate(str(tmp_path / f"{name}.json"))


def test_a_file_too_large_to_be_a_config_is_not_read(write_config):
    path = write_config(b" " * (16 * 2**20 + 1))
    with pytest.raises(ModelError, match="at most 16 MiB"):
        read_json(path)


@pytest.mark.parametrize("content", [[], 3, None, "bert", {}, {**TINY_BERT, "hidden_size": -4}])
def test_json_that_is_no_model_is_a_config_error(write_config, content):
    with pytest.raises(ConfigError):
        load_config(locate(str(write_config(content))))


@pytest.mark.parametrize("key", TINY_BERT)
@pytest.mark.parametrize("value", ["8", -1, 0, 1e9, 10**9, 10**30, float("nan"), True, [], {}, "\0", None])
def test_a_hostile_value_under_any_key_answers_or_is_refused_in_one_line(write_config, key, value):
    path = write_config({**TINY_BERT, key: value})
    try:
        config = load_config(locate(str(path)))
    except HeadwiseError as error:
        assert "\n" not in str(error)
    else:
        assert config.num_layers == 3
        assert config.embed_dim > 0


def test_a_python_file_without_a_name_is_told_what_to_write(tmp_path):
    (tmp_path / "mine.py").write_text("net = None")
    with pytest.raises(
        ModelError, match=r"mine\.py is a Python file: write .*mine\.py:name, with the name of a module"
    ):
        locate(str(tmp_path / "mine.py"))
