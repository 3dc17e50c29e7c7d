"""Norms on a tape: layer norm, one fused call, and root-mean-square norms as each implementation writes them out."""

from headwise.cost.step.autocast import cast, cast_inputs, promote
from headwise.cost.step.operations import inverse_root, lay_out_heads, mean, multiply, power, shift
from headwise.cost.step.tape import Value


def layer_norm(name: str, x: Value, weight: Value, bias: Value) -> Value:
    """Layer normalisation over the last dimension; keeps x and the mean and inverse deviation of each row.

    These two are float32 on CUDA; on CPU they are as wide as x, or as the weight where that is wider.
    """
    tape = x.storage.tape
    x, weight, bias = cast_inputs("layer_norm", x, weight, bias)
    dtype = "float32" if tape.device == "cuda" else promote(x, weight)
    rows = (*x.shape[:-1], 1)
    is_copied = x.storage.layout == "places"
    _copy = tape.new(f"{name} input, in the order of tokens", x.shape, x.dtype) if is_copied else None
    kept = (x.storage, tape.new(f"{name} mean", rows, dtype), tape.new(f"{name} inverse deviation", rows, dtype))
    return tape.apply(
        name,
        x.shape,
        fresh=(x, weight, bias),
        kept=kept,
        keeps_statistics=True,
        needs_dense=True,
        scratch=(x.shape,) if is_copied else (),
        gradient_layouts=("tokens", "same", "same") if is_copied else (),
    )


def batch_norm(name: str, x: Value, weight: Value, bias: Value, *, is_training: bool) -> Value:
    """Batch normalisation of a map (B, C, H, W); keeps x, and in training the mean and inverse deviation of channels.

    These are float32 on CUDA, and as wide as the weight on CPU. There, backward copies a gradient that lies in memory
    as x does; one in another order it reads as it is.
    """
    tape = x.storage.tape
    kept = [x.storage]
    if is_training:
        dtype = "float32" if tape.device == "cuda" else weight.dtype
        channels = weight.shape
        kept += [tape.new(f"{name} {part}", channels, dtype) for part in ("mean", "inverse deviation")]
    return tape.apply(
        name,
        x.shape,
        fresh=(x, weight, bias),
        kept=kept,
        keeps_statistics=True,
        needs_dense=tape.device == "cpu",
        layout="places",
    )


def rms_norm(name: str, x: Value, weight: Value) -> Value:
    """Llama's: computed in float32, cast back, then times the weight."""
    wide = cast(x, "float32")
    variance = _variance(name, wide)
    normed = multiply(f"{name} before weight", wide, _inverse_deviation(name, variance))
    del wide
    return multiply(name, cast(normed, x.dtype), weight)


def rms_norm_cast_last(name: str, x: Value, weight: Value) -> Value:
    """OLMo 2's: the weight is multiplied with in float32, before the cast back."""
    wide = cast(x, "float32")
    variance = _variance(name, wide)
    normed = multiply(f"{name} before weight", wide, _inverse_deviation(name, variance))
    del wide
    return cast(multiply(name, normed, weight), x.dtype)


def rms_norm_one_plus(name: str, x: Value, weight: Value) -> Value:
    """Gemma's: the factor is one plus the weight, in float32, before the cast back."""
    normed = _norm_in_float32(name, x)
    normed = multiply(name, normed, shift(f"{name} weight plus one", cast(weight, "float32")))
    return cast(normed, x.dtype)


def rms_norm_of_t5(name: str, x: Value, weight: Value) -> Value:
    """T5's: the variance alone is float32; what it divides is cast where the weight is narrow."""
    variance = _variance(name, cast(x, "float32"))
    normed = multiply(f"{name} before weight", x, _inverse_deviation(name, variance))
    return multiply(name, normed if weight.dtype == "float32" else cast(normed, weight.dtype), weight)


def rms_norm_of_torch(name: str, x: Value, weight: Value) -> Value:
    """`F.rms_norm`: on CUDA one kernel, which keeps x and the inverse deviation of each row; on CPU, its parts."""
    tape = x.storage.tape
    x, weight = cast_inputs("rms_norm", x, weight)
    if tape.device == "cpu":
        return cast(_norm_by_parts(name, x, weight), x.dtype)
    deviation = tape.new(f"{name} inverse deviation", (*x.shape[:-1], 1))
    return tape.apply(name, x.shape, fresh=(x, weight), kept=(x.storage, weight.storage, deviation), needs_dense=True)


def _norm_by_parts(name: str, x: Value, weight: Value) -> Value:
    """Norm in float32, laid out anew; what it reads and divides by is held until it returns."""
    wide = cast(x, "float32")
    deviation = _inverse_deviation(name, _variance(name, wide))
    normed = multiply(f"{name} before weight", wide, deviation)
    normed = multiply(name, normed, weight)
    return lay_out_heads(name, normed)


def _norm_in_float32(name: str, x: Value) -> Value:
    """Norm without a weight, in one expression: it holds no variable of its own."""
    x = cast(x, "float32")
    return multiply(f"{name} before weight", x, _inverse_deviation(name, _variance(name, x)))


def _variance(name: str, x: Value) -> Value:
    return mean(f"{name} mean square", power(f"{name} squares", x))


def _inverse_deviation(name: str, variance: Value) -> Value:
    return inverse_root(f"{name} inverse root", shift(f"{name} mean square, shifted", variance))
