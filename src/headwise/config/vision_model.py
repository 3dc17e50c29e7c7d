"""image_model: a PatchEncoder or a C3TR at one size of image, as the ModelConfig that every bill is reckoned from."""

from dataclasses import dataclass, replace
from typing import no_type_check

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.checks import require_size
from headwise.config.model import ModelConfig
from headwise.config.patches import PatchConfig
from headwise.config.vision import C3TRConfig, PatchEncoderConfig
from headwise.errors import ConfigError

ImageConfig = PatchEncoderConfig | C3TRConfig
"""Configs of modules that take images, or feature maps of them, of any size."""

C3TR_STRIDE = 32
"""Pixels from one place to the next of the map on which YOLOv5 puts its C3TR, the last one of the backbone (its
models/hub/yolov5s-transformer.yaml, where the block has 512 channels and one layer)."""

COMPATIBLE = "yolov5"
"""`model_type` of a C3TR in the layout and arithmetic of the published block."""


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class GrowingPatches(PatchConfig):
    """Tokens of an image that may have any size: one a patch, with positions that are computed, no class token.

    Args:
        image_size: pixels along one side of the square image, a multiple of `patch_size`.
        patch_size: pixels along one side of a patch.
        num_channels: numbers a pixel.
    """

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "num_channels"):
            require_size(name, getattr(self, name))
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"image must be a multiple of the {self._step_name}, {self.patch_size} pixels; got {self.image_size}"
            )

    @property
    def num_tokens(self) -> int:
        """Number of tokens of an image: its patches."""
        return self.num_patches

    @property
    def places_per_side(self) -> int:
        """Tokens along one side of the image."""
        return self.image_size // self.patch_size

    @property
    def _step_name(self) -> str:
        return "patch size"


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class MapPlaces(GrowingPatches):
    """Tokens of a feature map, one a place, between the convolutions of a cross-stage partial block.

    Args:
        image_size: pixels along one side of the square image that the map is of, a multiple of `patch_size`.
        patch_size: pixels of the image from one place of the map to the next: the map's stride.
        num_channels: channels of the map that comes in.
        out_channels: channels of the map that goes out.
    """

    out_channels: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_size("out_channels", self.out_channels)

    @property
    def _step_name(self) -> str:
        return "stride"


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class StackedAttentionConfig(AttentionConfig):
    """Attention whose queries, keys and values are projected twice, as in YOLOv5's layer: without biases, then with."""


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class NormlessBlockConfig(BlockConfig):
    """A block without norms: `x = x + attention(x); x = x + feed_forward(x)`, as YOLOv5's layer has it."""

    @property
    def num_norms(self) -> int:
        """None."""
        return 0


def image_model(config: ImageConfig, image: int, *, stride: int | None = None, name: str | None = None) -> ModelConfig:
    """Describe a module at one size of image.

    Args:
        config: the module.
        image: pixels along one side of the square image; a multiple of the patch size, or of the stride.
        stride: of a C3TR: pixels of the image from one place of its feature map to the next. Default: 32, where YOLOv5
            puts it. A PatchEncoder has its patch size in this place.
        name: what to call it. Default: the module's class.

    Raises:
        ConfigError: the image is no multiple, or a stride beside patches.
    """
    require_size("image", image)
    if isinstance(config, PatchEncoderConfig):
        if stride is not None:
            raise ConfigError(
                f"stride must be left out of a PatchEncoder, whose patches of {config.patch_size} pixels stand side by "
                f"side; got {stride}"
            )
        patches = GrowingPatches(image_size=image, patch_size=config.patch_size, num_channels=config.num_channels)
        return _model(name or "PatchEncoder", "headwise", config.block, config.num_layers, patches)
    require_size("stride", C3TR_STRIDE if stride is None else stride)
    places = MapPlaces(
        image_size=image,
        patch_size=C3TR_STRIDE if stride is None else stride,
        num_channels=config.in_channels,
        out_channels=config.out_channels,
    )
    model_type = COMPATIBLE if config.block is None else "headwise"
    return _model(name or "C3TR", model_type, config.block or _plain_block(config), config.num_layers, places)


def with_image(config: ModelConfig, image: int) -> ModelConfig:
    """Return a model of `image_model` at another size of image.

    Raises:
        ConfigError: the image is no multiple of the patch size or the stride.
    """
    assert isinstance(config.patches, GrowingPatches), "models of image_model alone take any image"
    patches = replace(config.patches, image_size=image)
    return replace(config, patches=patches, max_positions=patches.num_tokens)


def _model(name: str, model_type: str, block: BlockConfig, num_layers: int, patches: GrowingPatches) -> ModelConfig:
    return ModelConfig(
        name=name,
        model_type=model_type,
        kind="encoder",
        embed_dim=block.attention.embed_dim,
        vocab_size=0,
        max_positions=patches.num_tokens,
        blocks=(block,) * num_layers,
        final_norm=block.num_norms > 0,
        patches=patches,
    )


def _plain_block(config: C3TRConfig) -> BlockConfig:
    """Describe the layer of the compatible form: the linear maps of its feed-forward stand next to each other."""
    width = config.inner_channels
    return NormlessBlockConfig(
        attention=StackedAttentionConfig.from_keywords(embed_dim=width, num_heads=config.num_heads),
        feed_forward=FeedForwardConfig(embed_dim=width, hidden_dim=width, activation="identity", bias=False),
    )
