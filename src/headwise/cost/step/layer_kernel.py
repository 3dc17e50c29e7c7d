"""kernel_of: which kernel of scaled_dot_product_attention a layer's call gets, by whose implementation it is."""

from headwise.config.attention import AttentionConfig, T5Bias
from headwise.cost.step.attention import BiasKind, choose_kernel
from headwise.cost.step.own_attention import plan_kernel
from headwise.cost.step.run import HeadsConfig
from headwise.cost.workload import Workload
from headwise.kernels import KernelChoice


def kernel_of(model_type: str, config: HeadsConfig, workload: Workload, *, is_cross: bool = False) -> KernelChoice:
    """Return the kernel that runs where a layer calls sdpa.

    Args:
        model_type: whose implementation; "headwise" for our own modules.
        config: the layer's attention.
        workload: of the step.
        is_cross: the attention reads an encoder's output.
    """
    if model_type == "headwise" and isinstance(config, AttentionConfig):
        return plan_kernel(config, workload)[1]
    return choose_kernel(config, workload, bias=_bias_kind(model_type, config, workload, is_cross))[0]


def _bias_kind(model_type: str, config: HeadsConfig, workload: Workload, is_cross: bool) -> BiasKind:
    """Tell what T5 adds to the scores: its table's values, which learn or not, or zeros where it reads the encoder."""
    if model_type != "t5":
        return "none"
    learns = workload.phase == "train" and workload.lora is None
    return "learned" if learns and not is_cross and isinstance(config.position, T5Bias) else "constant"
