"""FLOPs of a text by closed form, of every kind of model that experiments train."""

from headwise.config.model import ModelConfig
from headwise.cost.flops import forward_flops
from headwise.experiments.asking import ModelDescription
from headwise.experiments.image_classifier import ImageClassifierConfig, image_forward_flops
from headwise.experiments.recurrent import RecurrentConfig, recurrent_forward_flops


def text_flops(model: ModelDescription, seq: int) -> int:
    """Return the FLOPs of matrix products and convolutions of one text's forward pass, one multiply-add = 2.

    Scores and what is read by them count for the pairs that the mask allows: what a model must compute, so that windows
    and full attention can be told apart. Implementations that visit other pairs and throw them away do more.

    Args:
        model: what reads it.
        seq: its tokens; a model of images reads one image, whatever this is.
    """
    if isinstance(model, RecurrentConfig):
        return recurrent_forward_flops(model, seq)
    if isinstance(model, ImageClassifierConfig):
        return image_forward_flops(model)
    assert isinstance(model, ModelConfig)
    count = forward_flops(model, batch=1, seq=seq)
    return count.dense if count.attended is None else count.attended
