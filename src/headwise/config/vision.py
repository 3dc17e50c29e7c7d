"""PatchEncoderConfig and C3TRConfig: modules that attend over images and feature maps, on paper."""

from dataclasses import dataclass
from typing import Any, no_type_check

from headwise.config.attention import AttentionConfig
from headwise.config.block import MAX_LAYERS, BlockConfig, FeedForwardConfig
from headwise.config.checks import require_flag, require_positive, require_probability, require_size
from headwise.errors import ConfigError

HIDDEN_PER_WIDTH = 4  # width inside a feed-forward, as a multiple of the stream's: Vaswani et al. 2017, section 3.3
NORM_EPS = 1e-6  # of layer norms, as in the code of Dosovitskiy et al. 2020


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class PatchEncoderConfig:
    """A Transformer over the patches of an image, of any size.

    Args:
        patch_size: pixels along one side of a patch.
        embed_dim: width of the tokens; a multiple of `num_heads`, and of 4: a sine and a cosine for rows and columns.
        num_heads: number of heads.
        num_layers: number of blocks.
        num_channels: numbers a pixel.
        hidden_dim: width inside each feed-forward. Default: `4 * embed_dim`.
        dropout_p: dropout on what each part of a block adds.
    """

    patch_size: int
    embed_dim: int
    num_heads: int
    num_layers: int
    num_channels: int = 3
    hidden_dim: int = None  # type: ignore[assignment]
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        for name in ("patch_size", "embed_dim", "num_heads", "num_channels"):
            require_size(name, getattr(self, name))
        require_size("num_layers", self.num_layers, maximum=MAX_LAYERS)
        _require_heads("embed_dim", self.embed_dim, self.num_heads)
        _require_sines("embed_dim", self.embed_dim)
        if self.hidden_dim is None:
            object.__setattr__(self, "hidden_dim", HIDDEN_PER_WIDTH * self.embed_dim)
        require_size("hidden_dim", self.hidden_dim)
        require_probability("dropout_p", self.dropout_p)

    @property
    def block(self) -> BlockConfig:
        """The layer that all layers are."""
        return _make_block(self.embed_dim, self.num_heads, self.hidden_dim, self.dropout_p)

    @classmethod
    def from_keywords(cls, **keywords: Any) -> "PatchEncoderConfig":
        """Build the config from settings that may be None, which asks for the default."""
        return cls(**keywords)


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class C3TRConfig:
    """A cross-stage partial block whose inner stage is a Transformer over the places of a feature map.

    Args:
        in_channels: channels of the feature map that comes in.
        out_channels: channels of the one that goes out.
        num_layers: number of Transformer layers.
        num_heads: number of heads.
        expansion: width of the inner stage, as a share of `out_channels`.
        hidden_dim: width inside each feed-forward. Default: 4 times the inner width. The compatible form has its own,
            equal to the inner width: leave it out there.
        norm_eps: what the batch norms add to the variance.
        compatible: the layout and arithmetic of the published block.
    """

    in_channels: int
    out_channels: int
    num_layers: int = 1
    num_heads: int = 4
    expansion: float = 0.5
    hidden_dim: int = None  # type: ignore[assignment]
    norm_eps: float = 1e-3
    compatible: bool = False

    def __post_init__(self) -> None:
        for name in ("in_channels", "out_channels", "num_heads"):
            require_size(name, getattr(self, name))
        require_size("num_layers", self.num_layers, maximum=MAX_LAYERS)
        for name in ("expansion", "norm_eps"):
            require_positive(name, getattr(self, name))
        require_flag("compatible", self.compatible)
        if self.inner_channels < 1:
            raise ConfigError(
                "int(out_channels * expansion), the inner width, must be at least 1; "
                f"got {self.out_channels} and {self.expansion}"
            )
        _require_heads("int(out_channels * expansion), the inner width,", self.inner_channels, self.num_heads)
        if not self.compatible:
            _require_sines("int(out_channels * expansion), the inner width,", self.inner_channels)
        elif self.hidden_dim not in (None, self.inner_channels):
            raise ConfigError(
                "hidden_dim must be left out where compatible is True: feed-forwards there are as wide as the inner "
                f"stage, {self.inner_channels}; got {self.hidden_dim}"
            )
        if self.hidden_dim is None:
            hidden_dim = self.inner_channels * (1 if self.compatible else HIDDEN_PER_WIDTH)
            object.__setattr__(self, "hidden_dim", hidden_dim)
        require_size("hidden_dim", self.hidden_dim)

    @property
    def inner_channels(self) -> int:
        """Channels of the stage that attends, and of the path beside it."""
        return int(self.out_channels * self.expansion)

    @property
    def block(self) -> BlockConfig | None:
        """The layer that all layers of the default form are; None in the compatible form, which has no norms."""
        return None if self.compatible else _make_block(self.inner_channels, self.num_heads, self.hidden_dim, 0.0)

    @classmethod
    def from_keywords(cls, **keywords: Any) -> "C3TRConfig":
        """Build the config from settings that may be None, which asks for the default."""
        return cls(**keywords)


def _make_block(embed_dim: int, num_heads: int, hidden_dim: int, dropout_p: float) -> BlockConfig:
    return BlockConfig(
        attention=AttentionConfig.from_keywords(embed_dim=embed_dim, num_heads=num_heads),
        feed_forward=FeedForwardConfig(embed_dim=embed_dim, hidden_dim=hidden_dim),
        norm_eps=NORM_EPS,
        dropout_p=dropout_p,
    )


def _require_heads(name: str, width: int, num_heads: int) -> None:
    if width % num_heads:
        raise ConfigError(
            f"{name} must be a multiple of num_heads, so that the heads share it evenly; got {width} and {num_heads}"
        )


def _require_sines(name: str, width: int) -> None:
    if width % 4:
        raise ConfigError(
            f"{name} must be a multiple of 4, so that rows and columns have as many sines as cosines; got {width}"
        )
