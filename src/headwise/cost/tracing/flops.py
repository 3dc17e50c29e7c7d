"""trace_flops: the FLOPs of any module's forward pass, run on tensors that have shapes but no numbers."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from headwise.cost.results import FlopCount
from headwise.cost.running.flop_counter import FlopCounter
from headwise.cost.running.prepare import switch_cache_off
from headwise.cost.tracing.fake import FakeKernels, copy_to_meta, make_fake
from headwise.cost.tracing.quiet import quiet_trace
from headwise.errors import HeadwiseError, ModelError, describe
from headwise.integrations.transformers_tracing import whole_texts


def trace_flops(module: nn.Module, inputs: Mapping[str, Tensor] | tuple[Tensor, ...]) -> FlopCount:
    """Count the FLOPs of one forward pass of a copy of any module, in eval mode, without computing a number.

    Args:
        module: any module on any device (meta too); nothing of it is changed.
        inputs: what it is called with, by name or in order; only shapes and dtypes are read.

    Returns:
        FlopCount: `dense`; `attended` is None wherever a mask is a tensor, since it has no values to read.

    Raises:
        ModelError: the module cannot be copied or run without numbers.
    """
    copied = copy_to_meta(module).eval()
    switch_cache_off(copied)
    try:
        with quiet_trace(), FakeTensorMode(allow_non_fake_inputs=True):
            fake = make_fake(copied, inputs)
            with whole_texts(), FakeKernels(), torch.no_grad(), FlopCounter() as counter:
                _ = copied(**fake) if isinstance(fake, Mapping) else copied(*fake)
    except HeadwiseError:
        raise
    except Exception as error:
        raise ModelError(f"a forward pass of {type(module).__name__} must run; it raised {describe(error)}") from error
    return counter.count
