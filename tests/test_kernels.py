import itertools
import subprocess
import sys

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.kernels import SdpaCase, sdpa_kernel

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"


class RecordOperations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def kernel_that_ran(query, key, value, **keywords):
    with RecordOperations() as record:
        functional.scaled_dot_product_attention(query, key, value, **keywords)
    return "flash_cpu" if FLASH in record.names else "math"


def mask_keywords(form, query_len, key_len, dtype):
    if form == "none":
        return {}
    if form == "causal":
        return {"is_causal": True}
    if form == "bool":
        return {"attn_mask": torch.ones(query_len, key_len, dtype=torch.bool)}
    return {"attn_mask": torch.zeros(query_len, key_len, dtype=dtype)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["none", "causal", "bool", "float"])
def test_the_table_names_the_cpu_kernel_that_torch_dispatches(dtype, form):
    cases = itertools.product([5, 7], [False, True], [0.0, 0.25], [False, True], [(3, 3), (3, 11), (0, 3), (3, 0)])
    for v_head_dim, grouped, dropout_p, requires_grad, (query_len, key_len) in cases:
        for contiguous in (True, False):
            query = torch.randn(2, 6, query_len, 7, dtype=dtype, requires_grad=requires_grad)
            key = torch.randn(2, 2 if grouped else 6, key_len, 7, dtype=dtype)
            if not contiguous:
                key = key.mT.contiguous().mT
                if key.stride(-1) == 1:  # with a single or no key the two layouts are one
                    continue
            value = torch.randn(2, key.shape[1], key_len, v_head_dim, dtype=dtype)
            case = SdpaCase(
                device="cpu",
                dtype=str(dtype).removeprefix("torch."),
                head_dim=7,
                v_head_dim=v_head_dim,
                mask="bool" if form == "float" else form,  # torch treats both alike
                grouped=grouped,
                dropout_p=dropout_p,
                requires_grad=requires_grad,
                query_len=query_len,
                key_len=key_len,
                contiguous=contiguous,
            )
            choice = sdpa_kernel(case)
            keywords = mask_keywords(form, query_len, key_len, dtype)
            ran = kernel_that_ran(query, key, value, dropout_p=dropout_p, enable_gqa=grouped, **keywords)
            assert choice.name == ran, (choice, dtype, form, v_head_dim, grouped, dropout_p, query_len, key_len)
            assert choice.is_fused == (not choice.reasons)


def test_reasons_name_each_faster_kernel_with_what_it_needs_and_what_came():
    choice = sdpa_kernel(
        SdpaCase(device="cuda", dtype="float32", head_dim=64, v_head_dim=64, mask="bool", grouped=True)
    )
    assert choice.name == "math"
    assert [reason.split(" is not taken: ")[0] for reason in choice.reasons] == ["cudnn", "flash", "efficient"]
    assert choice.reasons[1] == "flash is not taken: it takes no mask but causal"
    assert choice.reasons[2] == "efficient is not taken: it needs as many key/value heads as query heads"
    on_cpu = sdpa_kernel(SdpaCase(device="cpu", dtype="float32", head_dim=64, v_head_dim=64, dropout_p=0.1))
    assert on_cpu.reasons == ("flash_cpu is not taken: it has no dropout; got dropout_p = 0.1",)
    assert on_cpu.to_dict() == {"name": "math", "reasons": list(on_cpu.reasons)}


@pytest.mark.parametrize(
    ("expected", "case"),
    [
        ("flash", {"dtype": "bfloat16"}),
        ("flash", {"dtype": "float16", "mask": "causal", "dropout_p": 0.1, "grouped": True}),
        ("efficient", {"dtype": "bfloat16", "mask": "bool"}),
        ("efficient", {"dtype": "float32"}),
        ("efficient", {"dtype": "bfloat16", "v_head_dim": 128}),
        ("efficient", {"dtype": "bfloat16", "mask": "causal", "query_len": 3, "key_len": 5}),
        ("efficient", {"dtype": "float16", "compute_capability": (7, 0)}),
        ("math", {"dtype": "bfloat16", "compute_capability": (7, 5)}),
        ("math", {"dtype": "bfloat16", "mask": "bool", "grouped": True}),
        ("math", {"dtype": "float64"}),
        ("math", {"dtype": "float32", "v_head_dim": 66}),
        ("efficient", {"dtype": "float32", "head_dim": 67, "v_head_dim": 65, "compute_capability": (7, 5)}),
        ("efficient", {"dtype": "float16", "head_dim": 67, "v_head_dim": 65, "compute_capability": (6, 1)}),
        ("math", {"dtype": "float16", "head_dim": 68, "v_head_dim": 68, "compute_capability": (7, 5)}),
        ("math", {"dtype": "bfloat16", "key_len": 0}),
        ("cudnn", {"dtype": "bfloat16", "compute_capability": (9, 0), "mask": "bool", "grouped": True}),
        ("flash", {"dtype": "bfloat16", "compute_capability": (9, 0), "dropout_p": 0.1}),
        ("cudnn", {"dtype": "bfloat16", "compute_capability": (9, 0), "dropout_p": 0.125}),
        ("flash", {"dtype": "bfloat16", "compute_capability": (9, 0), "head_dim": 136, "v_head_dim": 136}),
        (
            "efficient",
            {
                "dtype": "bfloat16",
                "compute_capability": (8, 9),
                "head_dim": 200,
                "v_head_dim": 200,
                "requires_grad": True,
            },
        ),
    ],
)
def test_the_cuda_rules_are_those_read_from_torch(expected, case):
    assert sdpa_kernel(SdpaCase(**{"device": "cuda", "head_dim": 64, "v_head_dim": 64, **case})).name == expected


def test_kernels_and_mask_patterns_import_no_torch():
    code = (
        "import sys, headwise.kernels, headwise.masks.patterns as p;"
        "(p.Causal() & ~p.SlidingWindow(3)).count_pairs(5, 7);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
