"""Attention over images: the places of a feature map are tokens, which know their row and column."""

from dataclasses import asdict

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.config.block import MAX_LAYERS, BlockConfig
from headwise.config.checks import require_instance, require_size, shown
from headwise.config.vision import PatchEncoderConfig
from headwise.errors import ConfigError
from headwise.nn.block import Block
from headwise.nn.checks import explain_refusal
from headwise.positions.absolute import SinusoidalPositions
from headwise.positions.grid import grid_positions


class PatchEncoder(nn.Module):
    """A small Vision Transformer: an image's patches look at each other, and come out as a feature map.

    `tokens = patch_proj(patches) + positions`, then `num_layers` pre-norm blocks and a last norm. Positions are sines
    of row and column, so that the image may have any size, from one patch on. There is no class token: to classify,
    take the mean over the places of the output.

    Pixels beyond the last whole patch of a row or column are not read.

    Args:
        patch_size: pixels along one side of a patch.
        embed_dim: width of the tokens; a multiple of `num_heads`, and of 4.
        num_heads: number of heads.
        num_layers: number of blocks.
        num_channels: numbers a pixel.
        hidden_dim: width inside each feed-forward. Default: `4 * embed_dim`.
        dropout_p: dropout, in training, on what each part of a block adds.
        impl: which implementation of `attention` computes it.

    Attributes:
        config: the same settings as a `PatchEncoderConfig`, every default filled in.

    Raises:
        ConfigError: settings that contradict each other.
        UnsupportedError: an unknown `impl`.

    Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", section 3.1; positions by sines and the mean in
    place of a class token: Beyer et al. 2022, "Better plain ViT baselines for ImageNet-1k".
    """

    def __init__(
        self,
        patch_size: int,
        embed_dim: int,
        num_heads: int,
        num_layers: int,
        *,
        num_channels: int = 3,
        hidden_dim: int | None = None,
        dropout_p: float = 0.0,
        impl: str = "auto",
    ):
        super().__init__()
        self.config = config = PatchEncoderConfig.from_keywords(
            patch_size=patch_size,
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_layers=num_layers,
            num_channels=num_channels,
            hidden_dim=hidden_dim,
            dropout_p=dropout_p,
        )
        self.patch_proj = nn.Conv2d(num_channels, embed_dim, patch_size, stride=patch_size)
        self.stage = TransformerStage(config.block, num_layers, impl=impl)

    @classmethod
    def from_config(cls, config: PatchEncoderConfig, *, impl: str = "auto") -> "PatchEncoder":
        """Build the encoder that a config describes."""
        require_instance("config", config, PatchEncoderConfig)
        return cls(**asdict(config), impl=impl)

    def forward(
        self, image: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch embed_dim rows cols"]:
        """Encode images.

        Args:
            image: (batch, num_channels, height, width), each side at least `patch_size`.

        Returns:
            (batch, embed_dim, height // patch_size, width // patch_size), one place a patch.

        Raises:
            ConfigError: another number of channels, another dtype or device than the weights', or an image that is
                smaller than a patch.
        """
        check_map("image", image, "num_channels", self.config.num_channels)
        if min(image.shape[2:]) < self.config.patch_size:
            raise ConfigError(
                f"image must have at least patch_size = {self.config.patch_size} pixels on each side; "
                f"got {image.shape[2]} by {image.shape[3]}"
            )
        try:
            output: Tensor = self.stage(self.patch_proj(image))
        except RuntimeError:
            explain_refusal(self, image=image)
            raise
        return output


class TransformerStage(nn.Module):
    """Transformer blocks over the places of a feature map.

    `tokens = places + positions`; `tokens = block(tokens)` for each block; `norm(tokens)`, laid out as the map was.

    Args:
        block: the layer that all layers are; every place sees every place.
        num_layers: number of blocks.
        impl: which implementation of `attention` computes it.

    Raises:
        ConfigError: `num_layers` is out of range.
        UnsupportedError: a block that is not built here, or an unknown `impl`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3; the last norm: Xiong et al. 2020, section 3.
    """

    def __init__(self, block: BlockConfig, num_layers: int, *, impl: str = "auto"):
        super().__init__()
        require_size("num_layers", num_layers, maximum=MAX_LAYERS)
        self.blocks = nn.ModuleList(Block(block, impl=impl) for _ in range(num_layers))
        self.embed_dim = block.attention.embed_dim
        self.final_norm = nn.LayerNorm(self.embed_dim, eps=block.norm_eps)

    def forward(
        self, feature_map: Float[Tensor, "batch embed_dim height width"]
    ) -> Float[Tensor, "batch embed_dim height width"]:
        """Let the places of each map look at each other."""
        height, width = feature_map.shape[2:]
        tokens = to_tokens(feature_map)
        tokens = tokens + grid_sinusoids(height, width, self.embed_dim, dtype=tokens.dtype, device=tokens.device)
        for block in self.blocks:
            tokens = block(tokens)
        return to_map(self.final_norm(tokens), height, width)


def grid_sinusoids(
    num_rows: int,
    num_columns: int,
    embed_dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "places embed_dim"]:
    """Tell each place of a grid, row by row, where it is: the sinusoids of its row, then those of its column.

    Args:
        num_rows: places from top to bottom.
        num_columns: places from left to right.
        embed_dim: width of the tokens, a multiple of 4; half of it is for the row, half for the column.
        dtype: of the vectors; that of the tokens.
        device: where the vectors shall be.

    Raises:
        ConfigError: `embed_dim` is no multiple of 4.

    Source: Vaswani et al. 2017, section 3.5, for each axis, as in Beyer et al. 2022.
    """
    require_size("embed_dim", embed_dim)
    if embed_dim % 4:
        raise ConfigError(f"embed_dim must be a multiple of 4 for positions on a grid; got {embed_dim}")
    encode = SinusoidalPositions(embed_dim // 2)
    rows, columns = grid_positions(num_rows, num_columns, device=device).unbind(-1)
    return torch.cat((encode(rows, dtype=dtype), encode(columns, dtype=dtype)), dim=-1)


# Both of these move channels while height and width stand apart, and join or split the two while channels come last.
# The other way round (join, then transpose), torch gives the batch dimension of one map a stride that no layout has,
# and the backward pass of its batch norm on CPU mistakes that layout: silently wrong gradients (torch 2.13).


def to_tokens(feature_map: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch places channels"]:
    """Read the places of each map as tokens, row by row."""
    return feature_map.permute(0, 2, 3, 1).flatten(1, 2)


def to_map(
    tokens: Float[Tensor, "batch places channels"], height: int, width: int
) -> Float[Tensor, "batch channels {height} {width}"]:
    """Lay tokens out as a map: the inverse of `to_tokens`."""
    batch_size, _, channels = tokens.shape
    return tokens.reshape(batch_size, height, width, channels).permute(0, 3, 1, 2)


def check_map(name: str, feature_map: Tensor, width_name: str, width: int) -> None:
    """Raise ConfigError unless a tensor is a batch of maps with the channels that a module was built for."""
    if not isinstance(feature_map, Tensor):
        raise ConfigError(f"{name} must be a tensor; got {shown(feature_map)}")
    if feature_map.dim() != 4 or feature_map.shape[1] != width:
        raise ConfigError(
            f"{name} must have shape (batch, {width_name} = {width}, height, width); got {tuple(feature_map.shape)}"
        )
