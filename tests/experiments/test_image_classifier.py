"""Models of images read every pixel of a digit, cost what torch counts, and are trained and foretold as others are."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headwise.config.vision import PatchEncoderConfig
from headwise.errors import ConfigError
from headwise.experiments.arm_results import about_model
from headwise.experiments.asking import loss_of, make_model, scores_of
from headwise.experiments.comparison_file import comparison_of
from headwise.experiments.digits import Digits
from headwise.experiments.image_classifier import ImageClassifierConfig, image_forward_flops
from headwise.experiments.models import c3tr_for, patch_encoder_for
from headwise.experiments.predicted_peak import predicted_peaks
from headwise.experiments.processes import Processes
from headwise.experiments.recipe import Recipe
from headwise.experiments.run import RunSettings, run
from headwise.experiments.sequence_tasks import MultiOffsetCopy
from headwise.experiments.training import Training

TASK = Digits(patch_size=1, levels=17)
PATCHES = patch_encoder_for(TASK, patch_size=4, embed_dim=20, num_heads=5, num_layers=2, hidden_dim=23)
MODELS = {
    "patches": PATCHES,
    "c3tr": c3tr_for(TASK, in_channels=13, out_channels=24, num_heads=3, num_layers=2),
    "compatible": c3tr_for(TASK, in_channels=13, out_channels=22, num_heads=1, compatible=True),
}


def make(name):
    torch.manual_seed(0)
    return make_model(MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_every_pixel_counts_and_the_end_mark_does_not(name):
    module = make(name).eval()
    ids = TASK.draw(2, seed=0, split="test").ids[:1].repeat(66, 1)
    for place in range(65):
        ids[place, place] = (ids[place, place] + 8) % 17  # all rows but the last differ from it in one token
    with torch.no_grad():
        scores = module(ids)
    assert scores.shape == (66, 65, 10)
    assert torch.equal(scores, scores[:, :1].expand(-1, 65, -1))  # of an image, at each of its tokens
    moved = (scores[:64, 0] - scores[65, 0]).abs().amax(dim=1)
    # float32: far above the error of sums of a few hundred terms below 1, and far below what a pixel does
    assert moved.min() > 2**-16
    assert torch.allclose(scores[64, 0], scores[65, 0], rtol=0, atol=2**-20)


def test_pixels_stand_where_they_stood():
    """The first patch of the encoder is the upper left corner of the picture, from black at 0 to white at 1."""
    module = make("patches")
    seen = []
    module.body.register_forward_pre_hook(lambda body, inputs: seen.append(inputs[0]))
    examples = TASK.draw(3, seed=1)
    module(examples.ids)
    assert seen[0].shape == (3, 1, 8, 8)
    assert (seen[0] * 16).round().flatten(1).int().tolist() == examples.ids[:, :64].tolist()
    assert seen[0].max() == 1


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_that_torch_counts(name):
    # in training, where torch's own layer takes no path of its own, and by the kernel whose products torch counts
    module = make(name).train()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        module(TASK.draw(3, seed=0).ids)
    assert image_forward_flops(MODELS[name]) * 3 == counter.get_total_flops()


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_a_step_is_foretold(name):
    recipe = Recipe(batch_size=7, steps=2, warmup_steps=1, evaluate_every=2)
    settings = RunSettings(task=TASK, model=MODELS[name], recipe=recipe)
    training = Training(
        make_model(MODELS[name]),
        recipe,
        loss=lambda module, batch: loss_of(module, batch, TASK),
        batch_of=lambda step: TASK.draw(7, seed=step),
    )
    predicted = predicted_peaks(settings, (0,))
    assert predicted.reason is None
    assert predicted.peak_bytes[0] == pytest.approx(training.measure_peak(), rel=0.01)


def test_an_image_model_is_trained_as_any_other(tmp_path):
    """What it is saved as is what it is tested as: batch norms and all."""
    recipe = Recipe(batch_size=32, steps=120, learning_rate=1e-2, warmup_steps=12, evaluate_every=40)
    settings = RunSettings(task=TASK, model=MODELS["c3tr"], recipe=recipe, num_validation=64, num_test=64)
    found = run(settings, tmp_path / "run")
    assert found.num_parameters == sum(one.numel() for one in make("c3tr").parameters())
    assert found.curve[-1]["validation_loss"] < found.curve[0]["validation_loss"]
    assert found.test["accuracy"] > 0.3  # of ten numerals, guessed in 0.1


def test_a_file_may_have_arms_of_images():
    content = {
        "name": "digits",
        "task": {"kind": "digits", "patch_size": 1, "levels": 17},
        "arms": [
            {"name": "patches", "kind": "patch-encoder", "patch_size": 4, "embed_dim": 20, "num_heads": 5}
            | {"num_layers": 2, "hidden_dim": 23},
            {"name": "C3TR", "kind": "c3tr", "in_channels": 13, "out_channels": 24, "num_heads": 3, "num_layers": 2},
            {"name": "GRU", "kind": "gru", "embed_dim": 8},
        ],
    }
    arms = comparison_of(content).arms
    assert [arm.model for arm in arms[:2]] == [PATCHES, MODELS["c3tr"]]
    assert about_model(arms[0].model) == "patches of 4 x 4, 2 layers, width 20, 5 heads of 4"
    assert about_model(arms[1].model) == "C3TR of 24 channels, 2 layers, width 12, 3 heads of 4"


def test_what_cannot_be_is_refused(without_type_checks):
    with pytest.raises(ConfigError, match="digits of patch_size 1 and levels 17"):
        patch_encoder_for(Digits())
    with pytest.raises(ConfigError, match="digits of patch_size 1 and levels 17"):
        c3tr_for(MultiOffsetCopy())
    with pytest.raises(ConfigError, match="patch_size must divide image_size = 8"):
        patch_encoder_for(TASK, patch_size=3, embed_dim=20, num_heads=5)
    body = PatchEncoderConfig(patch_size=2, embed_dim=20, num_heads=5, num_layers=1, num_channels=3)
    with pytest.raises(ConfigError, match="one channel; got num_channels 3"):
        ImageClassifierConfig(body=body, image_size=8, num_greys=17, num_outputs=10)
    with pytest.raises(ConfigError, match="body must be"):
        ImageClassifierConfig(body=None, image_size=8, num_greys=17, num_outputs=10)
    with pytest.raises(ConfigError, match='checkpoint "none"'):
        make_model(PATCHES, checkpoint="full")
    with pytest.raises(ConfigError, match="batch norms would norm each process's part"):
        Processes(rank=0, world_size=2).spread(make("c3tr"))


def test_scores_are_of_ten_numerals():
    examples = TASK.draw(5, seed=3)
    assert scores_of(make("patches"), examples, TASK).shape == (5, 65, 1, 10)
