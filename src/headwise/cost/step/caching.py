"""Keys and values kept between calls, on a tape: what a prefill leaves behind; what a decode finds, grows and reads.

transformers' DynamicCache holds one tensor of keys and one of values a layer, and makes new ones at each call: of keys
first, beside the old ones, then of values. A layer with a window makes both before it drops either, and holds as many
tokens as the window, once decoding has filled it; of a prefill it holds on to all. Latent attention caches the latent
vectors and the rotary keys.

In 8 bits (derived, not measured: no library does precisely this) a layer holds a byte for each number and a float32
scale for each token and kv head, of keys and of values, of no more tokens than its window. Both grow as above. A
prefill attends to the keys and values that it has just computed; a decode reads them back for one layer at a time.
"""

from typing import NamedTuple

from headwise.config.model import ModelConfig
from headwise.cost.step.run import HeadsConfig, Run, window_of
from headwise.cost.step.tape import Shape, Storage, Value
from headwise.cost.workload import Workload
from headwise.errors import ConfigError, UnsupportedError


class _Part(NamedTuple):
    """The keys of a layer, or its values: a name, what is new of them, and the shape of all that the cache holds."""

    name: str
    new: Value
    shape: Shape

    def of_length(self, tokens: int) -> Shape:
        """Return the shape of as many tokens."""
        batch, heads, _, dim = self.shape
        return (batch, heads, tokens, dim)


def require_cache(config: ModelConfig, workload: Workload) -> None:
    """Raise unless the phase is another than decode, or the model can decode.

    Raises:
        ConfigError: an encoder generates nothing.
        UnsupportedError: the model's implementation has no cache.
    """
    if workload.phase != "decode":
        return
    if config.kind == "encoder":
        raise ConfigError(
            f"a model must be a decoder to generate token by token; {config.name} is an encoder: give phase 'prefill'"
        )
    if config.model_type == "headwise":
        raise UnsupportedError(
            "a decode is predicted of models of transformers; of headwise's own blocks its cache is, by kv_cache_bytes"
        )


def update_cache(run: Run, config: HeadsConfig, key: Value, value: Value) -> tuple[Value, Value]:
    """Put keys and values (B, K, T, D) into the layer's cache, and return those that the attention reads.

    Training has no cache, and reads what is given.
    """
    return _update(run, config, ("keys", "values"), key, value)


def update_latent_cache(run: Run, config: HeadsConfig, latent: Value, key: Value) -> tuple[Value, Value]:
    """The same with latent vectors (B, T, R) and rotary keys (B, 1, T, D) of latent attention."""
    if run.workload.phase == "train":
        return latent, key
    batch, tokens, rank = latent.shape
    latent = Value((batch, 1, tokens, rank), latent.storage)
    latent, key = _update(run, config, ("latent vectors", "rotary keys"), latent, key)
    return Value((batch, latent.shape[2], rank), latent.storage), key


def find_cached(run: Run, name: str, shape: Shape, dtype: str) -> Value:
    """Find what an earlier call has cached for good, and this one reads as it is: an encoder's keys and values."""
    if run.workload.kv_cache == "int8":
        held = [run.tape.stand(*one, kind="input", layout="heads") for one in _in_8_bits(name, shape)]
        run.cached += held
        return _read_back(run, name, shape, dtype)
    found = run.tape.stand(f"cached {name}", shape, dtype, kind="input", layout="heads")
    run.cached.append(found)
    return Value(shape, found)


def _update(run: Run, config: HeadsConfig, names: tuple[str, str], key: Value, value: Value) -> tuple[Value, Value]:
    workload, window = run.workload, window_of(config)
    if workload.phase == "train":
        return key, value
    is_8_bit = workload.kv_cache == "int8"
    is_cut = window is not None and (workload.phase == "decode" or is_8_bit)
    tokens = min(workload.seq, window) if is_cut and window is not None else workload.seq
    parts = [_Part(name, x, (*x.shape[:2], tokens, x.shape[3])) for name, x in zip(names, (key, value), strict=True)]
    earlier = [_find_earlier(run, part, window) for part in parts]
    for index, part in enumerate(parts):
        run.cached += [run.tape.new(*one, layout="heads") for one in _tensors(run, part.name, part.shape, part.new)]
        if window is None:
            earlier[index].clear()
    earlier.clear()
    if not is_8_bit:
        keys, values = run.cached[-2:]
        return Value(parts[0].shape, keys), Value(parts[1].shape, values)
    if workload.phase == "prefill":
        return key, value
    read_key, read_value = (_read_back(run, part.name, part.shape, part.new.dtype) for part in parts)
    return read_key, read_value


def _find_earlier(run: Run, part: _Part, window: int | None) -> list[Storage]:
    """Return what a decode finds of the tokens before."""
    tokens = run.workload.seq - 1 if run.workload.phase == "decode" else 0
    if window is not None:
        tokens = min(tokens, window)
    if not tokens:
        return []
    found = _tensors(run, part.name, part.of_length(tokens), part.new)
    return [run.tape.stand(*one, kind="input", layout="heads") for one in found]


def _tensors(run: Run, name: str, shape: Shape, like: Value) -> list[tuple[str, Shape, str]]:
    if run.workload.kv_cache == "int8":
        return _in_8_bits(name, shape)
    return [(f"cached {name}", shape, like.dtype)]


def _in_8_bits(name: str, shape: Shape) -> list[tuple[str, Shape, str]]:
    return [(f"cached {name}", shape, "int8"), (f"scales of cached {name}", shape[:3], "float32")]


def _read_back(run: Run, name: str, shape: Shape, dtype: str) -> Value:
    return Value(shape, run.tape.new(f"{name}, read back", shape, dtype, layout="heads"))
