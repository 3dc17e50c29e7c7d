"""Digits: small pictures of handwritten numerals as sequences of patches."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.config.checks import require_choice, require_size
from headwise.errors import ConfigError, DataError, MissingExtraError
from headwise.experiments.classification import drawn
from headwise.experiments.corpora.splits import TEST_SHARE, VALIDATION_SHARE, split_groups
from headwise.experiments.corpora.texts import SPLITS
from headwise.experiments.examples import IGNORED, Examples, Split, TokenTask

SIDE = 8  # pixels
GREYS = 17  # 0 to 16
MAX_VOCABULARY = 2**16
DIGITS_SHA256 = "51a7a81e6bc7c71b57185132bb76715544f2b493f70cb00266286dc364fdb1ea"


@dataclass(frozen=True, kw_only=True)
class Digits(TokenTask):
    """Say which numeral a picture of 8 x 8 pixels shows, at an end mark behind its patches.

    Models here read tokens, so a patch is made one: each of its pixels is rounded down to one of `levels` greys, and
    the greys of its pixels, read as the digits of a number, are the token. `patch_size=1, levels=17` loses nothing, in
    64 tokens; the default is 16 patches of 2 x 2 pixels in 4 greys. The pictures come with scikit-learn; a fifth is for
    tests and a tenth for validation, the same ones ever, and no picture is in two splits.

    Args:
        patch_size: pixels along one side of a patch: 1, 2 or 4.
        levels: greys that are told apart, from 2 to 17.

    Raises:
        ConfigError: a number is out of range, or there would be more than 65,536 tokens.

    Source: Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", of which scikit-learn has the test
    set; Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (patches).
    """

    patch_size: int = 2
    levels: int = 4

    def __post_init__(self) -> None:
        require_size("patch_size", self.patch_size)
        require_choice("patch_size", str(self.patch_size), ("1", "2", "4"))
        require_size("levels", self.levels, minimum=2)
        if self.levels > GREYS:
            raise ConfigError(f"levels must be at most {GREYS}, the greys of a pixel; got {self.levels}")
        if self.end > MAX_VOCABULARY:
            raise ConfigError(
                f"levels ** patch_size ** 2 must be at most {MAX_VOCABULARY}; got levels {self.levels} and patch_size "
                f"{self.patch_size}: take fewer levels or smaller patches"
            )

    @property
    def end(self) -> int:
        """Return the end mark, the last token."""
        return int(self.levels ** (self.patch_size**2))

    @property
    def vocab_size(self) -> int:  # type: ignore[override]  # it follows from the fields
        """Return the number of different patches and the end mark."""
        return self.end + 1

    @property
    def seq_len(self) -> int:  # type: ignore[override]
        """Return the number of patches and the end mark."""
        return (SIDE // self.patch_size) ** 2 + 1

    @property
    def num_classes(self) -> int:
        """Return the number of numerals."""
        return 10

    @property
    def classifies(self) -> bool:
        """Return that answers are classes of pictures."""
        return True

    @property
    def data_version(self) -> str:
        """Return what tells the pictures and splits from any others, as they were recorded."""
        return DIGITS_SHA256[:12]

    def draw(self, num_examples: int, *, seed: int, split: Split = "train") -> Examples:
        """Return pictures of a split: of the training ones any, of the others the first ones.

        Raises:
            MissingExtraError: scikit-learn is not installed.
        """
        pixels, labels = digits_by_split()[split]
        count = len(labels)
        index = drawn(count, num_examples, seed) if split == "train" else torch.arange(min(count, num_examples))
        tokens = self.tokens_of(pixels[index])
        ids = torch.cat([tokens, torch.full((len(index), 1), self.end)], dim=1)
        targets = torch.full((len(index), self.seq_len, 1), IGNORED)
        targets[:, -1, 0] = labels[index]
        return Examples(ids, targets, torch.full((len(index),), self.seq_len))

    def tokens_of(self, pixels: Int[Tensor, "pictures 8 8"]) -> Int[Tensor, "pictures patches"]:
        """Return the token of each patch, row by row of patches; of a patch its first pixel is the highest digit."""
        size, count = self.patch_size, SIDE // self.patch_size
        greys = pixels * self.levels // GREYS
        patches = greys.view(-1, count, size, count, size).transpose(2, 3).reshape(-1, count**2, size**2)
        values = self.levels ** torch.arange(size**2 - 1, -1, -1)
        return (patches * values).sum(dim=-1)


@lru_cache(maxsize=1)
def digits_by_split() -> dict[Split, tuple[Int[Tensor, "pictures 8 8"], Int[Tensor, " pictures"]]]:
    """Return pixels, from 0 to 16, and numerals of each split, each picture once."""
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise MissingExtraError("scikit-learn", "experiments") from error
    found = datasets.load_digits()
    pictures = {
        bytes(int(pixel) for pixel in picture.flat): int(label)
        for picture, label in zip(found.images, found.target, strict=True)
    }
    # in an order of no meaning: that of a digest
    names = sorted(pictures, key=lambda picture: hashlib.sha256(picture).digest())
    splits = split_groups([name.hex() for name in names], {"test": TEST_SHARE, "validation": VALIDATION_SHARE})
    chosen = {split: [name for name, own in zip(names, splits, strict=True) if own == split] for split in SPLITS}
    return {
        split: (
            torch.tensor([list(name) for name in own]).view(-1, SIDE, SIDE),
            torch.tensor([pictures[name] for name in own]),
        )
        for split, own in chosen.items()
    }


def check_digits() -> str:
    """Return the SHA-256 of all pictures with their numerals, in order of the splits.

    Raises:
        DataError: they are not those that were recorded.
    """
    digest = hashlib.sha256()
    for split, (pixels, labels) in digits_by_split().items():
        digest.update(split.encode() + bytes(pixels.flatten().tolist()) + bytes(labels.tolist()))
    if digest.hexdigest() != DIGITS_SHA256:
        raise DataError(
            f"scikit-learn's digits must have the SHA-256 {DIGITS_SHA256}; got {digest.hexdigest()}: its pictures were "
            "changed; install another version of it"
        )
    return DIGITS_SHA256
