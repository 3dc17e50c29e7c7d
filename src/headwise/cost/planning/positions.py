"""with_positions: the same model with a position table long enough for a length."""

from dataclasses import replace

from headwise.config.model import ModelConfig


def with_positions(config: ModelConfig, seq: int) -> ModelConfig:
    """Return a config whose learned position tables, where it has some, hold at least `seq` tokens.

    A length within what the model was made for leaves it as it is. Rows that no token reads (RoBERTa's first two) stay.
    """
    missing = seq - config.max_positions
    if missing <= 0:
        return config
    encoder = config.encoder
    if encoder is not None and encoder.position_table_size:
        encoder = replace(encoder, position_table_size=encoder.position_table_size + missing)
    table_size = config.position_table_size + missing if config.position_table_size else 0
    return replace(config, max_positions=seq, position_table_size=table_size, encoder=encoder)
