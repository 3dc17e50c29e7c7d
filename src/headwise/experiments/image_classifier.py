"""Models of images for `Digits`: a small Vision Transformer, or C3TR behind a convolution."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.config.checks import require_size
from headwise.config.vision import C3TRConfig, PatchEncoderConfig
from headwise.config.vision_model import image_model
from headwise.cost.flops import forward_flops
from headwise.errors import ConfigError
from headwise.nn.c3tr import C3TR
from headwise.nn.vision import PatchEncoder

STEM_SIDE = 3  # pixels along one side of what the convolution before a C3TR reads


@dataclass(frozen=True, kw_only=True)
class ImageClassifierConfig:
    """A classifier of square grey images, on paper.

    Args:
        body: what attends: to patches of the image, or to the places of a feature map with as many places as pixels.
        image_size: pixels along one side.
        num_greys: different values of a pixel, 0 the darkest.
        num_outputs: scores of an image.

    Raises:
        ConfigError: a number is out of range, or a patch encoder reads another number of channels than one.
    """

    body: PatchEncoderConfig | C3TRConfig
    image_size: int
    num_greys: int
    num_outputs: int

    def __post_init__(self) -> None:
        if not isinstance(self.body, PatchEncoderConfig | C3TRConfig):
            raise ConfigError(f"body must be a PatchEncoderConfig or a C3TRConfig; got {self.body!r}")
        require_size("image_size", self.image_size)
        require_size("num_greys", self.num_greys, minimum=2)
        require_size("num_outputs", self.num_outputs)
        if isinstance(self.body, PatchEncoderConfig):
            if self.body.num_channels != 1:
                raise ConfigError(f"a grey image has one channel; got num_channels {self.body.num_channels}")
            if self.image_size % self.body.patch_size:
                raise ConfigError(
                    f"patch_size must divide image_size = {self.image_size}, so that all pixels are read; got "
                    f"{self.body.patch_size}"
                )

    @property
    def out_channels(self) -> int:
        """Return the width of the map that the scores are made of."""
        return self.body.embed_dim if isinstance(self.body, PatchEncoderConfig) else self.body.out_channels


class ImageClassifier(nn.Module):
    """Pixels to scores of an image, which are put out at every token of it.

    `scores = out(mean over places of body(stem(pixels)))`; before a C3TR the stem is `silu(bn(conv(pixels)))`, a
    convolution of 3 x 3 pixels that keeps the image's size, before patches there is none. Pixels are divided by the
    largest one, to lie between 0 and 1.

    Args:
        config: of the model.
        impl: which implementation of `attention` computes it.

    Source: Beyer et al. 2022, "Better plain ViT baselines for ImageNet-1k" (the mean in place of a class token);
    Wang et al. 2020, "CSPNet", section 3.1, for the C3TR.
    """

    def __init__(self, config: ImageClassifierConfig, *, impl: str = "auto"):
        super().__init__()
        self.config = config
        body = config.body
        self.stem: nn.Module
        self.body: nn.Module
        if isinstance(body, PatchEncoderConfig):
            self.stem = nn.Identity()
            self.body = PatchEncoder.from_config(body, impl=impl)
        else:
            width = body.in_channels
            conv = nn.Conv2d(1, width, STEM_SIDE, padding=STEM_SIDE // 2, bias=False)
            self.stem = nn.Sequential(conv, nn.BatchNorm2d(width, eps=body.norm_eps), nn.SiLU())
            self.body = C3TR.from_config(body, impl=impl)
        self.out = nn.Linear(config.out_channels, config.num_outputs)

    def forward(self, ids: Int[Tensor, "batch seq_len"]) -> Float[Tensor, "batch seq_len num_outputs"]:
        """Return the scores of each image.

        Args:
            ids: pixels row by row, one a token, and behind them an end mark, which is not read.
        """
        side = self.config.image_size
        pixels = ids[:, : side**2].reshape(-1, 1, side, side) / (self.config.num_greys - 1)
        scores: Tensor = self.out(self.body(self.stem(pixels)).mean(dim=(2, 3)))
        return scores.unsqueeze(1).expand(-1, ids.shape[1], -1)


def image_forward_flops(config: ImageClassifierConfig) -> int:
    """Return the FLOPs of matrix products and convolutions of one image, a multiplication and an addition counted each.

    With `L = image_size^2` places, `C` channels of the stem and `E = out_channels`: of the body as of
    `headwise.cost.flops.forward_flops`, before a C3TR `2 L 9 C` more, and `2 E num_outputs` of the scores.
    """
    body = config.body
    if isinstance(body, PatchEncoderConfig):
        model, stem = image_model(body, config.image_size), 0
    else:
        model = image_model(body, config.image_size, stride=1)
        stem = 2 * config.image_size**2 * STEM_SIDE**2 * body.in_channels
    assert model.patches is not None
    inside = forward_flops(model, batch=1, seq=model.patches.num_tokens).dense
    return inside + stem + 2 * config.out_channels * config.num_outputs
