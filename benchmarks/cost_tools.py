"""The tools that `benchmarks.cost` asks, each by the function that its own documentation names.

A tool answers a kind of question or does not; whatever it raises is its answer to that question.
"""

import contextlib
import inspect
import io
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

Answer = Callable[[Any], int | float | None]  # None: it does not answer such a question


def package_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def headwise_flops(asked: tuple[nn.Module, torch.Tensor]) -> float:
    from headwise.cost.running.flop_counter import count_flops

    module, x = asked
    return count_flops(module, x).dense / 2


def headwise_parameters(module: nn.Module) -> int:
    from headwise.cost.running.parameters import count_module_parameters

    return count_module_parameters(module).total


def headwise_step_bytes(asked: tuple[nn.Module, int, int]) -> int:
    """Predict from the config alone."""
    from headwise.config.huggingface import read_config
    from headwise.cost.memory import predict_step
    from headwise.cost.workload import Workload

    module, batch, seq = asked
    config = {**module.config.to_dict(), "architectures": [type(module).__name__]}
    return predict_step(read_config(config, name="model"), Workload(batch=batch, seq=seq, device="cpu")).peak_bytes


def headwise_cache_bytes(asked: tuple[str, int]) -> int | None:
    from headwise.config.presets import preset
    from headwise.cost.kv import kv_cache_bytes

    name, seq = asked
    return kv_cache_bytes(preset(name), batch=1, seq=seq, dtype="bfloat16")


def torch_flops(asked: tuple[nn.Module, torch.Tensor]) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    module, x = asked
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() / 2


def fvcore_flops(asked: tuple[nn.Module, torch.Tensor]) -> float:
    from fvcore.nn import FlopCountAnalysis

    return FlopCountAnalysis(*asked).unsupported_ops_warnings(False).uncalled_modules_warnings(False).total()


def fvcore_parameters(module: nn.Module) -> int:
    from fvcore.nn import parameter_count

    return parameter_count(module)[""]


def ptflops_flops(backend: str) -> Answer:
    """Ask one of its backends, with the input by keyword: of one by position it divides some counts by the batch."""

    def count(asked: tuple[nn.Module, torch.Tensor]) -> float:
        from ptflops import get_model_complexity_info

        module, x = asked
        name = next(iter(inspect.signature(module.forward).parameters))
        return get_model_complexity_info(
            module,
            tuple(x.shape[1:]),
            input_constructor=lambda _: {name: x},
            backend=backend,
            as_strings=False,
            print_per_layer_stat=False,
            verbose=False,
        )[0]

    return count


def calflops_flops(asked: tuple[nn.Module, torch.Tensor]) -> float:
    from calflops import calculate_flops

    module, x = asked
    return calculate_flops(
        model=module, args=[x], print_results=False, print_detailed=False, output_as_string=False, output_precision=9
    )[1]


def thop_flops(asked: tuple[nn.Module, torch.Tensor]) -> float:
    from thop import profile

    module, x = asked
    return profile(module, inputs=(x,), verbose=False)[0]


def torchinfo_flops(asked: tuple[nn.Module, torch.Tensor]) -> int:
    from torchinfo import summary

    module, x = asked
    mode = "train" if module.training else "eval"
    return summary(module, input_data=x, mode=mode, verbose=0).total_mult_adds


def torchinfo_parameters(module: nn.Module) -> int:
    from torchinfo import summary

    return summary(module, verbose=0).total_params


def torchinfo_step_bytes(asked: tuple[nn.Module, int, int]) -> int:
    """Return its "estimated total size": input, forward and backward pass, parameters."""
    from torchinfo import summary

    module, batch, seq = asked
    seen = summary(module, input_data=torch.ones(batch, seq, dtype=torch.int64), mode="train", verbose=0)
    return seen.total_input + seen.total_output_bytes + seen.total_param_bytes


def accelerate_parameters(module: nn.Module) -> float | None:
    """Do what `accelerate estimate-memory` does for a name on the hub, with the model's own config."""
    return _accelerate_bytes(module) / 4 if hasattr(module, "config") else None


def accelerate_step_bytes(asked: tuple[nn.Module, int, int]) -> int:
    from accelerate.commands.estimate import estimate_training_usage

    return max(estimate_training_usage(int(_accelerate_bytes(asked[0])), "float32").values())


def _accelerate_bytes(module: nn.Module) -> float:
    from accelerate import init_empty_weights
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoModel

    with init_empty_weights():
        model = AutoModel.from_config(module.config)
    return calculate_maximum_sizes(model)[0]


# tool -> its package, and what it answers
TOOLS: dict[str, tuple[str, dict[str, Answer]]] = {
    "headwise": (
        "headwise",
        {
            "flops": headwise_flops,
            "parameters": headwise_parameters,
            "step bytes": headwise_step_bytes,
            "cache bytes": headwise_cache_bytes,
        },
    ),
    "torch FlopCounterMode": ("torch", {"flops": torch_flops}),
    "fvcore": ("fvcore", {"flops": fvcore_flops, "parameters": fvcore_parameters}),
    "ptflops, pytorch": ("ptflops", {"flops": ptflops_flops("pytorch")}),
    "ptflops, aten": ("ptflops", {"flops": ptflops_flops("aten")}),
    "calflops": ("calflops", {"flops": calflops_flops}),
    "thop": ("thop", {"flops": thop_flops}),
    "torchinfo": (
        "torchinfo",
        {"flops": torchinfo_flops, "parameters": torchinfo_parameters, "step bytes": torchinfo_step_bytes},
    ),
    "accelerate estimate-memory": (
        "accelerate",
        {"parameters": accelerate_parameters, "step bytes": accelerate_step_bytes},
    ),
}


@contextlib.contextmanager
def hushed() -> Any:
    """Keep what tools print to themselves."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
