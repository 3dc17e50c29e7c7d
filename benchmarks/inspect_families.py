"""What can be seen of every model type of transformers: `python -m benchmarks.inspect_families [--json] [--only TYPE]`.

Each type's default config is cut down and built with random weights, in a child process with limits of time and memory.
Two texts of unlike lengths go through it, padded on the right, or two images, films or sounds. What `open_stacks` shows
is compared with the weights that the same model returns in eager mode, on real tokens. Every type ends in one of:

- captured: read on its own path; `compared` says with what: "eager", or "outputs" where eager mode returns no weights
  or not of the same layers (there, weights times values gave each layer's own outputs).
- eager: read in eager mode, as the note says.
- refused: by one line.
- not tried: its cut config cannot be built or run; the line says why.
- wrong: something else than eager mode's weights was shown, nothing was, or the refusal was no HeadwiseError.

What is captured, or read in eager mode, goes through `inspect_stacks_of_inputs` as well: `unshown` says of which stacks
heads are not shown, and why (windows of an image, say, are no texts).
"""

import argparse
import json
import multiprocessing
import resource
import time
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

from headwise.errors import HeadwiseError, describe
from headwise.inspection.capture.eager import FIELDS, EagerReader
from headwise.inspection.capture.readers import open_stacks
from headwise.inspection.inspect import inspect_stacks_of_inputs
from headwise.integrations.transformers_attention import keep_implementation, use_eager_attention

LIMIT_SECONDS = 30  # of a processor's work; ten times as long by the clock
LIMIT_BYTES = 6 * 2**30
LIMIT_PARAMETERS = 10**8
VOCAB, TOKENS, WIDTH, HEADS, LAYERS = 97, 11, 64, 4, 2
REAL = torch.tensor([[1] * TOKENS, [1] * 5 + [0] * 6])
STATUSES = ("captured", "eager", "refused", "not tried", "wrong")
# A weight is at most 1, and eager functions round it to float32, be the model of float64, before the next layer reads
# it: scores there, some tens in size with the widths below, move by a few times 1e-6.
TOLERANCE = 2e-5

# what a config's field is cut to; only fields that are there and larger
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim", "embedding_dim"), WIDTH),
    **dict.fromkeys(("embedding_size", "encoder_hidden_size", "decoder_hidden_size", "hidden_dim"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_key_value_heads"), HEADS),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim"), WIDTH // HEADS),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "encoder_layers"), LAYERS),
    **dict.fromkeys(("decoder_layers", "num_encoder_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "ffn_dim", "encoder_ffn_dim", "d_ff"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "mlp_dim", "shared_expert_intermediate_size", "encoder_intermediate_size"), 48),
    **dict.fromkeys(("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), WIDTH // HEADS // 2),
    **dict.fromkeys(("qk_head_dim", "q_lora_rank", "kv_lora_rank"), WIDTH // HEADS),
    "vocab_size": VOCAB,
    "image_size": 32,
    "patch_size": 8,
}
# for types whose widths and heads depend on one another in ways of their own: their layers and words alone are cut
FEW = {name: size for name, size in SMALL.items() if size in (LAYERS, VOCAB) and "per_tok" not in name}


def cut(config: Any, sizes: Mapping[str, int] = SMALL) -> dict[str, Any]:
    """Return keyword arguments that make a config of the same kind small."""
    settings: dict[str, Any] = {}
    for name, value in vars(config).items():
        if hasattr(value, "model_type"):
            settings[name] = cut(value, sizes) | {"model_type": value.model_type}
        elif isinstance(value, int) and not isinstance(value, bool) and value > sizes.get(name, value):
            settings[name] = sizes[name]
        elif isinstance(value, dict) and "mrope_section" in value and sizes is SMALL:
            settings[name] = {**value, "mrope_section": [4, 2, 2]}  # rotary pairs of a head by time, height and width
        elif isinstance(value, list) and len(value) == getattr(config, "num_hidden_layers", None) > LAYERS:
            kinds = list(dict.fromkeys(value))[-LAYERS:]  # what each layer is: one of each kind
            settings[name] = [kinds[0]] * (LAYERS - len(kinds)) + kinds
        elif name == "attn_layer_period":  # Jamba's attention layers
            settings |= {name: LAYERS, "attn_layer_offset": LAYERS - 1}
        elif name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            settings[name] = min(value, VOCAB - 1) if isinstance(value, int) else value
        elif name == "attention_types":  # GPT-Neo's kinds of layers, each so often
            settings[name] = [[["global", "local"], LAYERS // 2]]
    if "qk_rope_head_dim" in settings and "head_dim" in settings:
        settings["head_dim"] = settings["qk_rope_head_dim"]  # there it is what rotary positions turn
    return settings


def build(family: str, sizes: Mapping[str, int] = SMALL, **settings: Any) -> nn.Module:
    """Build the bare model of a type, cut down, with random weights wide enough for weights far from uniform.

    Raises:
        LookupError: transformers has no model class for the config alone, or even the cut one is large.
    """
    config = CONFIG_MAPPING[family](**{**cut(CONFIG_MAPPING[family](), sizes), **settings})
    found = next(
        (each[type(config)] for each in (MODEL_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING) if type(config) in each), None
    )
    if found is None:
        raise LookupError("transformers has no model class for the config alone")
    cls = found[0] if isinstance(found, tuple | list) else found
    with torch.device("meta"):
        num_parameters = sum(parameter.numel() for parameter in cls._from_config(config).parameters())
    if num_parameters > LIMIT_PARAMETERS:
        raise LookupError(f"cut down as far as is known here, it has {num_parameters // 10**6} million parameters")
    torch.manual_seed(0)
    model = cls._from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model.eval()


def make_inputs(model: Any, real: Tensor = REAL) -> Iterator[dict[str, Tensor]]:
    """Make two texts, padded, two images, films or sounds, for a model: all that it may read first, then less.

    Raises:
        LookupError: it reads something else.
    """
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, VOCAB, tuple(real.shape), generator=generator)
    config, reads = model.config, model.main_input_name
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 32)
    pixels = (getattr(vision, "num_channels", 3), *(size if isinstance(size, tuple | list) else (size, size)))
    text = {"input_ids": ids, "attention_mask": real}
    if config.is_encoder_decoder:
        text["decoder_input_ids"] = ids[:, :7]
    if reads == "input_ids":
        if "pixel_values" in signature(model.forward).parameters and hasattr(config, "vision_config"):
            yield {**text, "pixel_values": torch.randn(2, *pixels, generator=generator)}
        yield text
    elif reads == "pixel_values":
        yield {reads: torch.randn(2, *pixels, generator=generator)}
        if hasattr(config, "num_frames"):
            yield {reads: torch.randn(2, config.num_frames, *pixels, generator=generator)}
    elif reads == "input_features" and hasattr(config, "num_mel_bins"):
        length = 2 * getattr(config, "max_source_positions", 20)
        sound = {reads: torch.randn(2, config.num_mel_bins, length, generator=generator)}
        yield sound | ({"decoder_input_ids": ids[:, :7]} if config.is_encoder_decoder else {})
    elif reads == "input_values":
        sound = {reads: torch.randn(2, 4000, generator=generator)}
        yield sound | ({"decoder_input_ids": ids[:, :7]} if config.is_encoder_decoder else {})
    else:
        raise LookupError(f"no inputs are made here for {reads}")


def find(family: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the first model of a type that can be built and run, cut as far as possible, and its inputs.

    Raises:
        Exception: whatever the smallest one raised on its last inputs.
    """
    first: Exception | None = None
    for sizes in (SMALL, FEW):
        try:
            model = build(family, sizes)
            for inputs in make_inputs(model):
                try:
                    run(model, inputs)
                except Exception as error:  # the next inputs may be less than these
                    failed = error
                else:
                    return model, inputs
            raise failed
        except Exception as error:  # whatever a config, a missing package or a cut size brings
            first = first or error
    assert first is not None
    raise first


def eager_weights(model: Any, inputs: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Return the weights that a model returns in eager mode, each with the name of its field."""
    with torch.no_grad(), keep_implementation(model):
        use_eager_attention(model)
        torch.manual_seed(0)
        keywords = {} if getattr(model.config, "use_cache", None) is None else {"use_cache": False}
        output = model(**inputs, **keywords, output_attentions=True, return_dict=True)
    return [(field, each) for field in FIELDS for each in (getattr(output, field, None) or ()) if each is not None]


def differences(shown: list[Tensor], expected: list[tuple[str, Tensor]], real: Tensor) -> Iterator[float]:
    """Yield the largest difference of each layer, over real queries."""
    for got, (field, weights) in zip(shown, expected, strict=True):
        rows = torch.ones(weights.shape[:3], dtype=torch.bool)
        if field in ("attentions", "encoder_attentions") and weights.shape[2] == real.shape[1]:
            rows = real.bool()[:, None, :].expand(rows.shape)
        yield (got - weights).abs()[rows].max().item()


def examine(family: str) -> dict[str, Any]:
    """Try one type and say how it ended."""
    row: dict[str, Any] = {"family": family}
    warnings.simplefilter("ignore")
    try:
        model, inputs = find(family)
    except Exception as error:
        return row | {"status": "not tried", "why": describe(error)}
    model, inputs = prefer_double(model, inputs)
    shown: list[Tensor] = []
    try:
        reader = open_stacks(model, inputs)
        torch.manual_seed(0)  # for those that hide a random part of what they read
        reader.read(inputs, lambda *call: shown.append(torch.cat([block.weights for block in call[2].blocks()], dim=2)))
    except HeadwiseError as error:
        return row | {"status": "refused", "why": describe(error)}
    except Exception as error:  # the fault that this looks for
        return row | {"status": "wrong", "why": describe(error)}
    row["stacks"] = {stack.name: stack.num_layers for stack in reader.stacks}
    row["notes"] = list(reader.notes)
    if not shown:
        return row | {"status": "wrong", "why": "nothing was shown"}
    is_eager = isinstance(reader, EagerReader)
    row |= {"status": "eager", "why": reader.notes[0]} if is_eager else compare(model, inputs, shown)
    return row | look(model, inputs, [stack.name for stack in reader.stacks])


def look(model: Any, inputs: dict[str, Tensor], stacks: list[str]) -> dict[str, Any]:
    """Measure the heads of every stack, and say of which they are not shown."""
    unshown: dict[str, str] = {}
    for stack in stacks:
        torch.manual_seed(0)
        try:
            heads = inspect_stacks_of_inputs(model, inputs, stack=stack, max_map_tokens=0)[stack].heads
        except HeadwiseError as error:
            unshown[stack] = describe(error)
            continue
        except Exception as error:  # the fault that this looks for
            return {"status": "wrong", "why": f"{stack} cannot be measured: {describe(error)}"}
        # a mean of entropies over log n lies between 0 and 1, but for a sink, which may add 6 % at most
        if not all(0 <= head.normalized_entropy <= 1.07 for head in heads):
            return {"status": "wrong", "why": f"{stack} has an entropy that no weights have"}
    return {"unshown": unshown} if unshown else {}


def run(model: Any, inputs: dict[str, Tensor]) -> None:
    """Run a model once."""
    keywords = {} if getattr(model.config, "use_cache", None) is None else {"use_cache": False}
    with torch.no_grad():
        model(**inputs, **keywords)


def prefer_double(model: Any, inputs: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
    """Return a model and its inputs in float64, where roundings hide no fault; as they are, where it cannot run so."""
    doubled = {name: each.double() if each.is_floating_point() else each for name, each in inputs.items()}
    state = {name: each.clone() for name, each in model.state_dict().items()}
    try:
        run(model.double(), doubled)
    except Exception:  # a dtype that is written into the model
        model.float().load_state_dict(state)
        return model, inputs
    return model, doubled


def compare(model: Any, inputs: dict[str, Tensor], shown: list[Tensor]) -> dict[str, Any]:
    """Compare what was shown with eager mode, where that returns weights of the same layers."""
    try:
        expected = eager_weights(model, inputs)
    except Exception as error:  # eager mode of the model itself fails
        return {"status": "captured", "compared": "outputs", "why": f"eager mode fails: {describe(error)}"}
    shapes = sorted(tuple(each.shape) for each in shown)
    if not expected or shapes != sorted(tuple(weights.shape) for _, weights in expected):
        return {"status": "captured", "compared": "outputs"}
    if len({field for field, _ in expected}) > 1:  # decoders take turns of self- and cross-attention
        shown = _match(shown, [weights for _, weights in expected])
    real = inputs.get("attention_mask", REAL)
    largest = max(differences(shown, expected, real))
    if largest <= TOLERANCE:
        return {"status": "captured", "compared": "eager", "largest_difference": largest}
    # what attends is less by the sink's share than what some eager functions return
    whole = max(differences([each / each.sum(-1, keepdim=True) for each in shown], expected, real))
    if whole <= TOLERANCE:
        return {"status": "captured", "compared": "eager but for the sink's share", "largest_difference": whole}
    return {"status": "wrong", "compared": "eager", "largest_difference": largest}


def _match(shown: list[Tensor], expected: list[Tensor]) -> list[Tensor]:
    """Put what was shown into the order of the fields: of each expected layer the nearest of its shape."""
    return [
        min(
            (each for each in shown if each.shape == weights.shape),
            key=lambda each: (each - weights).abs().sum().item(),
        )
        for weights in expected
    ]


def _child(family: str, pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + LIMIT_SECONDS, used + LIMIT_SECONDS))
    pipe.send(examine(family))


def examine_apart(family: str) -> dict[str, Any]:
    """Examine a type in a process of its own, which ends with it."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(family, there))
    child.start()
    there.close()
    row = {"family": family, "status": "not tried", "why": f"took longer than {10 * LIMIT_SECONDS} s"}
    if here.poll(10 * LIMIT_SECONDS):
        try:
            row = here.recv()
        except EOFError:
            row["why"] = f"it takes more than {LIMIT_SECONDS} s of work, or {LIMIT_BYTES // 2**30} GiB of memory"
    child.kill()
    child.join()
    return row


def as_table(rows: list[dict[str, Any]]) -> str:
    """Write rows as a table in Markdown."""
    lines = ["| model type | ends as | stacks | remark |", "|---|---|---|---|"]
    for row in rows:
        stacks = ", ".join(f"{name} {layers}" for name, layers in row.get("stacks", {}).items())
        compared = f"equals {row['compared']}" if row.get("compared") else ""
        unshown = [f"{stack} is not shown: {why}" for stack, why in row.get("unshown", {}).items()]
        notes = row.get("notes", ()) if row["status"] == "captured" else ()
        parts = (compared, row.get("why", ""), *notes, *unshown)
        remark = "; ".join(part for part in parts if part).replace("|", "/")
        lines.append(f"| {row['family']} | {row['status']} | {stacks} | {remark} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", action="append", metavar="TYPE", help="only this; may be given again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for family in ("bert", "llama", "t5", "vit"):  # what most types import is imported once, before the first fork
        build(family)
    rows = [examine_apart(family) for family in options.only or sorted(CONFIG_MAPPING.keys())]
    totals = {status: sum(row["status"] == status for row in rows) for status in STATUSES}
    if options.json:
        versions = {name: version(name) for name in ("torch", "transformers")}
        print(json.dumps({"versions": versions, "totals": totals, "rows": rows}))
        return
    print(as_table(rows))
    print(totals, sum("unshown" in row for row in rows), "with a stack whose heads are not shown")


if __name__ == "__main__":
    main()
