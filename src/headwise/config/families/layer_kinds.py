"""Which layers see all earlier tokens and which a window of them, as config.json files of the families say it."""

from headwise.config.checks import shown
from headwise.config.keys import Keys
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, Mask, SlidingWindow

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def read_kinds(
    keys: Keys, *, num_layers: int, default: list[str], allowed: tuple[str, ...] = (FULL, SLIDING)
) -> list[str]:
    """Read `layer_types`, one name a layer; `default` is what null stands for."""
    kinds = keys.texts("layer_types")
    if kinds is None:
        return default
    if len(kinds) != num_layers:
        raise ConfigError(f"layer_types must name each of the {num_layers} layers; got {len(kinds)}")
    for kind in kinds:
        if kind not in allowed:
            raise ConfigError(f"layer_types must hold {' or '.join(allowed)}; got {shown(kind)}")
    return kinds


def every_layer_causal(keys: Keys, num_layers: int) -> list[Mask]:
    """Every layer sees all earlier tokens."""
    return [Causal()] * num_layers


def every_layer_windowed(keys: Keys, num_layers: int) -> list[Mask]:
    """Every layer has the window in `sliding_window`; null is none (Mistral)."""
    return [_window(keys)] * num_layers


def windowed_if_used(keys: Keys, num_layers: int) -> list[Mask]:
    """Every layer has the window where `use_sliding_window` says so (Qwen3-MoE)."""
    return [_window(keys) if keys.flag("use_sliding_window") else Causal()] * num_layers


def windowed_from_a_layer_on(keys: Keys, num_layers: int) -> list[Mask]:
    """The layers from `max_window_layers` on have the window, where `use_sliding_window` says so (Qwen2, Qwen3)."""
    window = _window(keys) if keys.flag("use_sliding_window") else Causal()
    first_windowed = keys.size("max_window_layers", minimum=0) if keys.texts("layer_types") is None else 0
    has_window = isinstance(window, SlidingWindow)
    default = [SLIDING if has_window and index >= first_windowed else FULL for index in range(num_layers)]
    return _of_kinds(read_kinds(keys, num_layers=num_layers, default=default), window)


def windowed_alternately_up_to_a_layer(keys: Keys, num_layers: int) -> list[Mask]:
    """Every other layer below `max_window_layers` has the window, where `use_sliding_window` says so (Qwen2-MoE)."""
    window = _window(keys) if keys.flag("use_sliding_window") else Causal()
    last_windowed = keys.size("max_window_layers", minimum=0) if keys.texts("layer_types") is None else 0
    has_window = isinstance(window, SlidingWindow)
    default = [
        SLIDING if has_window and index % 2 == 0 and index < last_windowed else FULL for index in range(num_layers)
    ]
    return _of_kinds(read_kinds(keys, num_layers=num_layers, default=default), window)


def windowed_but_every_nth(keys: Keys, num_layers: int) -> list[Mask]:
    """All layers but every `sliding_window_pattern`-th (every second, where there is no such key) have the window."""
    period = keys.size("sliding_window_pattern") if keys.has("sliding_window_pattern") else 2
    default = [SLIDING if (index + 1) % period else FULL for index in range(num_layers)]
    kinds = read_kinds(keys, num_layers=num_layers, default=default)
    return _of_kinds(kinds, _window(keys))


def windowed_without_positions(keys: Keys, num_layers: int) -> list[Mask]:
    """Where `use_sliding_window` says so, the layers without rotary positions have the window (SmolLM3)."""
    window = _window(keys) if keys.flag("use_sliding_window") else Causal()
    has_window = isinstance(window, SlidingWindow)
    default = [FULL if has_rotary or not has_window else SLIDING for has_rotary in read_rotary_layers(keys, num_layers)]
    return _of_kinds(read_kinds(keys, num_layers=num_layers, default=default), window)


def read_rotary_layers(keys: Keys, num_layers: int) -> list[bool]:
    """Read which layers have rotary positions: all, unless the family leaves some without (SmolLM3)."""
    if not keys.has("no_rope_layers"):
        return [True] * num_layers
    flags = keys.whole_numbers("no_rope_layers")  # 1 means with them, whatever the key is called
    if not flags:
        interval = keys.size("no_rope_layer_interval")
        return [(index + 1) % interval != 0 for index in range(num_layers)]
    if len(flags) != num_layers:
        raise ConfigError(f"no_rope_layers must have a number for each of the {num_layers} layers; got {len(flags)}")
    return [bool(flag) for flag in flags]


def _of_kinds(kinds: list[str], window: Mask) -> list[Mask]:
    if SLIDING in kinds and not isinstance(window, SlidingWindow):
        raise ConfigError(
            "layer_types asks for sliding_attention, so use_sliding_window must be true (where the family has it) and "
            "sliding_window given"
        )
    return [Causal() if kind == FULL else window for kind in kinds]


def _window(keys: Keys) -> Mask:
    window_size = keys.size_or_none("sliding_window")
    return Causal() if window_size is None else SlidingWindow(window_size)
