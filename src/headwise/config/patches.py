"""PatchConfig: how an image becomes tokens."""

from dataclasses import dataclass
from typing import no_type_check

from headwise.config.checks import require_size
from headwise.errors import ConfigError


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class PatchConfig:
    """How an image becomes tokens: square patches, each projected with a bias, after a learned class token.

    Args:
        image_size: pixels along one side of the square image.
        patch_size: pixels along one side of a patch; pixels of the image beyond whole patches are not read.
        num_channels: numbers a pixel.

    Source: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", section 3.1.
    """

    image_size: int
    patch_size: int
    num_channels: int = 3

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "num_channels"):
            require_size(name, getattr(self, name))
        if self.patch_size > self.image_size:
            raise ConfigError(f"patch_size must not exceed image_size; got {self.patch_size} and {self.image_size}")

    @property
    def num_patches(self) -> int:
        """Number of patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_tokens(self) -> int:
        """Number of tokens of an image: its patches and the class token."""
        return self.num_patches + 1

    @property
    def patch_dim(self) -> int:
        """Numbers in a patch, which its projection reads."""
        return self.num_channels * self.patch_size**2
