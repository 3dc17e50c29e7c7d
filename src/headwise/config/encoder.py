"""EncoderConfig: the encoder of an encoder-decoder."""

from dataclasses import dataclass
from typing import no_type_check

from headwise.config.block import BlockConfig, check_blocks, group_blocks
from headwise.config.checks import require_flag, require_size
from headwise.errors import ConfigError


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The encoder of an encoder-decoder: it reads the source text, through the token table that the decoder has too.

    Args:
        blocks: its layers, first to last.
        position_table_size: rows of its own learned position table; 0 = none.
        embedding_norm: a norm stands after the sum of the embeddings (BART).
        final_norm: a norm stands after the last block (T5).
    """

    blocks: tuple[BlockConfig, ...]
    position_table_size: int = 0
    embedding_norm: bool = False
    final_norm: bool = False

    def __post_init__(self) -> None:
        check_blocks(self.blocks)
        require_size("position_table_size", self.position_table_size, minimum=0)
        for name in ("embedding_norm", "final_norm"):
            require_flag(name, getattr(self, name))
        for block, _ in self.block_groups:
            if block.cross_attention is not None:
                raise ConfigError("a layer of an encoder must have no cross_attention; got one")
            kv_layer = getattr(block.attention, "kv_layer", None)
            if kv_layer is not None:
                raise ConfigError(f"a layer of an encoder must have keys of its own; got kv_layer {kv_layer}")

    @property
    def block_groups(self) -> tuple[tuple[BlockConfig, int], ...]:
        """Each distinct block object with the number of layers that it describes, in order of appearance."""
        return group_blocks(self.blocks)
