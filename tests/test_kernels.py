"""The table of kernels against what torch dispatches on CPU; the rules for CUDA, one case a rule."""

import itertools
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.nn.attention import sdpa_kernel as allow_kernels
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.kernels import KERNELS, SdpaCase, sdpa_kernel

FLASH = "_scaled_dot_product_flash_attention_for_cpu"
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


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
    return "flash_cpu" if any(FLASH in name for name in record.names) else "math"


def make_tensors(case, *, lead=(2,)):
    """Make query, key and value for a case, with the leading dimensions `lead` before the heads."""
    num_kv_heads = 2 if case.grouped else 6
    query = torch.randn(*lead, 6, case.query_len, case.head_dim, dtype=DTYPES[case.dtype])
    key = torch.randn(*lead, num_kv_heads, case.key_len, case.head_dim, dtype=DTYPES[case.dtype])
    value = torch.randn(*lead, num_kv_heads, case.key_len, case.v_head_dim, dtype=DTYPES[case.dtype])
    if not case.contiguous:
        # every second number of a wider head
        key = torch.stack((key, key), dim=-1).flatten(-2)[..., ::2]
    return query.requires_grad_(case.requires_grad), key, value


def mask_keywords(form, case):
    size = (*(1,) * (case.mask_dims - 2), case.query_len, case.key_len)
    if form == "bool":
        return {"attn_mask": torch.ones(size, dtype=torch.bool)}
    if form in ("float", "float that needs a gradient"):
        needs_grad = form != "float"
        return {"attn_mask": torch.zeros(size, dtype=DTYPES[case.dtype], requires_grad=needs_grad)}
    return {"is_causal": True} if form == "causal" else {}


MASKS = ["none", "causal", "bool", "float", "float that needs a gradient"]


def with_mask(form, **fields):
    """Describe a call on CPU whose mask has one of the forms of `MASKS`."""
    return SdpaCase(
        device="cpu",
        mask="bool" if form.startswith("float") else form,
        mask_requires_grad=form == "float that needs a gradient",
        **fields,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", MASKS)
def test_the_table_names_the_cpu_kernel_that_torch_dispatches(dtype, form):
    lengths = [(3, 3), (3, 11), (1, 1), (1, 5), (0, 3), (3, 0)]
    head_dims = [(7, 7), (8, 5), (1, 1)]
    grid = itertools.product(
        head_dims, [False, True], [0.0, 0.25], [False, True], [False, True], lengths, [True, False]
    )
    names = set()
    for (head_dim, v_head_dim), grouped, dropout_p, needs_grad, is_recording, (query_len, key_len), contiguous in grid:
        if not needs_grad and not is_recording:
            continue
        case = with_mask(
            form,
            dtype=dtype,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            grouped=grouped,
            dropout_p=dropout_p,
            requires_grad=needs_grad,
            query_len=query_len,
            key_len=key_len,
            contiguous=contiguous,
        )
        choice = sdpa_kernel(case)
        with nullcontext() if is_recording else torch.no_grad():
            tensors = make_tensors(case)
            ran = kernel_that_ran(*tensors, dropout_p=dropout_p, enable_gqa=grouped, **mask_keywords(form, case))
        assert choice.name == ran, (case, choice)
        assert choice.is_fused == (not choice.reasons)
        names.add(ran)
    assert names == ({"math"} if form == "float that needs a gradient" else {"math", "flash_cpu"})


@pytest.mark.parametrize("form", MASKS)
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=["3 dimensions", "4 dimensions", "5 dimensions"])
def test_only_four_dimensions_are_served_by_the_fused_kernel(form, lead):
    for mask_dims, grouped in itertools.product([2, 3, 4], [False, True]):
        if mask_dims > len(lead) + 3:
            continue
        case = with_mask(
            form,
            dtype="float32",
            head_dim=7,
            v_head_dim=7,
            grouped=grouped,
            query_len=3,
            key_len=5,
            num_dims=len(lead) + 3,
            mask_dims=mask_dims,
        )
        ran = kernel_that_ran(*make_tensors(case, lead=lead), enable_gqa=grouped, **mask_keywords(form, case))
        assert sdpa_kernel(case).name == ran, case


@pytest.mark.parametrize("form", MASKS)
@pytest.mark.parametrize("dropout_p", [0.0, 0.25])
def test_the_table_obeys_what_sdpa_kernel_allows(form, dropout_p):
    for num_allowed in range(1, len(KERNELS) + 1):
        for allowed in itertools.combinations(KERNELS, num_allowed):
            case = with_mask(
                form,
                dtype="float32",
                head_dim=7,
                v_head_dim=7,
                dropout_p=dropout_p,
                query_len=3,
                key_len=3,
                allowed=allowed,
            )
            with allow_kernels([BACKENDS[name] for name in allowed]):
                try:
                    ran = kernel_that_ran(*make_tensors(case), dropout_p=dropout_p, **mask_keywords(form, case))
                except RuntimeError:
                    ran = "error"
            assert sdpa_kernel(case).name == ran, case


@pytest.mark.parametrize(
    ("query_shape", "key_shape"),
    [((1, 6, 3, 7), (2, 6, 5, 7)), ((2, 6, 3, 7), (1, 6, 5, 7)), ((2, 6, 3, 7), (2, 1, 5, 7))],
    ids=["batch of queries", "batch of keys", "heads of keys"],
)
def test_what_must_be_broadcast_goes_to_the_quadratic_kernel(query_shape, key_shape):
    query, key = torch.randn(query_shape), torch.randn(key_shape)
    case = SdpaCase(device="cpu", dtype="float32", head_dim=7, v_head_dim=7, query_len=3, key_len=5, broadcast=True)
    assert sdpa_kernel(case).name == kernel_that_ran(query, key, key) == "math"


def test_inference_mode_and_determinism_change_nothing_on_cpu():
    case = SdpaCase(device="cpu", dtype="float32", head_dim=7, v_head_dim=7, query_len=3, key_len=3, deterministic=True)
    assert sdpa_kernel(case).name == "flash_cpu"
    tensors = make_tensors(case)
    # a dispatch mode sees composite operations whole in inference mode; the profiler sees what they call
    with torch.inference_mode(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        functional.scaled_dot_product_attention(*tensors)
    assert any(FLASH in event.key for event in profile.key_averages())
    torch.use_deterministic_algorithms(True)
    try:
        assert kernel_that_ran(*tensors) == "flash_cpu"
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_quadratic_kernel_makes_float32_scores_and_one_key_for_every_query_head():
    """What `KernelChoice.memory` says of it, seen in the shapes and dtypes of the operations."""
    shapes = set()

    class RecordResults(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                shapes.add((tuple(result.shape), result.dtype))
            return result

    query, key = torch.randn(2, 6, 3, 7, dtype=torch.bfloat16), torch.randn(2, 2, 5, 7, dtype=torch.bfloat16)
    with RecordResults():
        functional.scaled_dot_product_attention(query, key, key, dropout_p=0.5, enable_gqa=True)
    assert ((2, 6, 3, 5), torch.float32) in shapes
    assert any(shape in ((2, 6, 5, 7), (2, 6, 7, 5)) for shape, _ in shapes)
    choice = sdpa_kernel(
        SdpaCase(device="cpu", dtype="bfloat16", head_dim=7, v_head_dim=7, dropout_p=0.5, grouped=True)
    )
    assert choice.is_quadratic
    assert "score matrix" in choice.memory
    assert "every query head" in choice.memory


def cuda(**fields):
    return SdpaCase(**{"device": "cuda", "dtype": "bfloat16", "head_dim": 64, "v_head_dim": 64, **fields})


HOPPER = {"compute_capability": (9, 0)}


def test_reasons_name_each_faster_kernel_with_what_it_needs_and_what_came():
    choice = sdpa_kernel(cuda(dtype="float32", mask="bool", grouped=True, **HOPPER))
    assert choice.name == "math"
    assert choice.reasons == (
        "cudnn is not taken: it serves float16, bfloat16; got float32",
        "flash is not taken: it takes no mask but causal",
        "efficient is not taken: it needs as many key/value heads as query heads",
    )
    on_cpu = sdpa_kernel(SdpaCase(device="cpu", dtype="float32", head_dim=64, v_head_dim=64, dropout_p=0.1))
    assert on_cpu.reasons == ("flash_cpu is not taken: it has no dropout; got dropout_p = 0.1",)
    assert on_cpu.to_dict() == {"name": "math", "reasons": list(on_cpu.reasons)}
    assert on_cpu.to_text().startswith("math, memory quadratic: builds the (batch, heads, queries, keys) score matrix")
    assert on_cpu.to_text().endswith(on_cpu.reasons[0])


# The silent falls, and every other rule.
@pytest.mark.parametrize(
    ("fields", "expected", "reason"),
    [
        (
            {"grouped": True, "mask": "bool"},
            "math",
            "efficient is not taken: it needs as many key/value heads",
        ),
        ({"mask": "bool", "grouped": True}, "math", "flash is not taken: it takes no mask but causal"),
        (
            {"grouped": True, "head_dim": 264, "v_head_dim": 264},
            "math",
            "flash is not taken: it needs equal head sizes of at most 256; got 264 and 264",
        ),
        ({"mask": "bool"}, "efficient", "flash is not taken: it takes no mask but causal"),
        ({"dtype": "float32"}, "efficient", "flash is not taken: it serves float16, bfloat16; got float32"),
        (
            {"dtype": "float64"},
            "math",
            "efficient is not taken: it serves float32, float16, bfloat16; got float64",
        ),
        (
            {"mask": "bool", "head_dim": 68, "v_head_dim": 68},
            "math",
            "efficient is not taken: it needs head sizes that are multiples of 8 in bfloat16; got 68 and 68",
        ),
        (
            {"dtype": "float32", "head_dim": 66, "v_head_dim": 66},
            "math",
            "efficient is not taken: it needs head sizes that are multiples of 4 in float32; got 66 and 66",
        ),
        (
            {"v_head_dim": 128},
            "efficient",
            "flash is not taken: it needs equal head sizes of at most 256; got 64 and 128",
        ),
        (
            {"mask": "causal", "query_len": 3, "key_len": 5},
            "efficient",
            "flash is not taken: it needs as many queries as keys to be causal; got 3 and 5",
        ),
        (
            {"num_dims": 3},
            "math",
            "efficient is not taken: it needs 4 dimensions (batch, heads, length, head size); got 3",
        ),
        (
            {"num_dims": 5},
            "math",
            "flash is not taken: it needs 4 dimensions (batch, heads, length, head size); got 5",
        ),
        ({"broadcast": True}, "math", "flash is not taken: it needs query, key and value of one batch size"),
        (
            {"query_len": 3, "key_len": 0},
            "math",
            "efficient is not taken: it needs tokens; got 3 queries, 0 keys",
        ),
        ({"contiguous": False}, "math", "efficient is not taken: it needs query, key and value whose last"),
        (
            {"compute_capability": (7, 5)},
            "math",
            "efficient is not taken: it serves float32, float16; got bfloat16",
        ),
        (
            {"compute_capability": (7, 5), "dtype": "float16"},
            "efficient",
            "flash is not taken: it needs compute capability 8.0 to 12.1; got compute capability 7.5",
        ),
        (
            {"compute_capability": (4, 0), "dtype": "float32"},
            "math",
            "efficient is not taken: it needs compute capability 5.0 to 12.1; got compute capability 4.0",
        ),
        (
            {"compute_capability": (13, 0)},
            "math",
            "flash is not taken: it needs compute capability 8.0 to 12.1; got compute capability 13.0",
        ),
        (
            {"compute_capability": (8, 9), "head_dim": 200, "v_head_dim": 200, "requires_grad": True},
            "efficient",
            "flash is not taken: it cannot train heads of 200 numbers on compute capability 8.9",
        ),
        (
            {
                "compute_capability": (12, 0),
                "head_dim": 256,
                "v_head_dim": 256,
                "requires_grad": True,
                "dropout_p": 0.1,
            },
            "efficient",
            "flash is not taken: it cannot train heads of 256 numbers on compute capability 12.0",
        ),
        (
            {**HOPPER, "dropout_p": 0.1},
            "flash",
            "cudnn is not taken: it drops in steps of 1/16; got dropout_p = 0.1",
        ),
        ({**HOPPER, "deterministic": True}, "flash", "cudnn is not taken: it is not deterministic"),
        (
            {**HOPPER, "head_dim": 136, "v_head_dim": 136},
            "flash",
            "cudnn is not taken: it needs heads of at most 128 numbers (or keys of 192 with values of 128)",
        ),
        (
            {**HOPPER, "head_dim": 68, "v_head_dim": 68},
            "flash",
            "cudnn is not taken: it needs head sizes that are multiples of 8; got 68 and 68",
        ),
        (
            {**HOPPER, "query_len": 3, "key_len": 1},
            "flash",
            "cudnn is not taken: it cannot serve a single key",
        ),
        (
            {**HOPPER, "query_len": 1, "key_len": 5, "dropout_p": 0.125},
            "flash",
            "cudnn is not taken: it cannot serve a single key, nor a single query with dropout",
        ),
        (
            {**HOPPER, "mask": "bool", "mask_requires_grad": True},
            "efficient",
            "cudnn is not taken: it computes no gradient of a mask",
        ),
        (
            {**HOPPER, "mask": "bool", "mask_dims": 3},
            "efficient",
            "cudnn is not taken: it needs a mask of 2 or 4 dimensions; got 3",
        ),
        (
            {**HOPPER, "dtype": "float32"},
            "efficient",
            "cudnn is not taken: it serves float16, bfloat16; got float32",
        ),
        ({"allowed": ("efficient", "math")}, "efficient", "flash is not taken: it is not allowed by"),
        ({"allowed": ("math",)}, "math", "efficient is not taken: it is not allowed by"),
        ({"allowed": ("flash",), "mask": "bool"}, "error", "math is not taken: it is not allowed by"),
    ],
)
def test_one_particularity_of_a_call_costs_it_a_faster_kernel_on_cuda(fields, expected, reason):
    choice = sdpa_kernel(cuda(**fields))
    assert choice.name == expected
    assert any(given.startswith(reason) for given in choice.reasons), choice.reasons
    assert choice.is_quadratic == (expected == "math")


@pytest.mark.parametrize(
    ("expected", "fields"),
    [
        ("flash", {}),
        ("flash", {"dtype": "float16", "mask": "causal", "dropout_p": 0.1, "grouped": True}),
        ("flash", {"head_dim": 68, "v_head_dim": 68}),  # torch pads the heads
        ("flash", {"head_dim": 256, "v_head_dim": 256, "grouped": True, "requires_grad": True}),
        ("flash", {"compute_capability": (8, 9), "head_dim": 200, "v_head_dim": 200}),
        ("flash", {"compute_capability": (8, 9), "head_dim": 192, "v_head_dim": 192, "requires_grad": True}),
        ("flash", {"compute_capability": (8, 9), "head_dim": 256, "v_head_dim": 256, "requires_grad": True}),
        ("flash", {"head_dim": 200, "v_head_dim": 200, "requires_grad": True, "dropout_p": 0.1}),
        ("flash", {"deterministic": True}),
        ("flash", {"head_dim": 1, "v_head_dim": 1, "contiguous": False}),
        ("efficient", {"mask": "bool"}),
        ("efficient", {"mask": "bool", "mask_requires_grad": True, "mask_dims": 3}),
        ("efficient", {"head_dim": 264, "v_head_dim": 264}),
        ("efficient", {"dtype": "float32", "dropout_p": 0.1, "requires_grad": True}),
        ("efficient", {"dtype": "float16", "compute_capability": (7, 0)}),
        ("efficient", {"dtype": "float32", "head_dim": 67, "v_head_dim": 65, "compute_capability": (7, 5)}),
        ("efficient", {"dtype": "float16", "head_dim": 67, "v_head_dim": 65, "compute_capability": (6, 1)}),
        ("math", {"dtype": "float16", "head_dim": 68, "v_head_dim": 68, "compute_capability": (7, 5)}),
        ("cudnn", HOPPER),
        ("cudnn", {**HOPPER, "mask": "bool", "grouped": True, "mask_dims": 4}),
        ("cudnn", {**HOPPER, "dropout_p": 0.125}),
        ("cudnn", {**HOPPER, "head_dim": 192, "v_head_dim": 128}),
        ("cudnn", {"compute_capability": (10, 0)}),
        ("flash", {"compute_capability": (12, 0)}),
        ("cudnn", {"allowed": ("cudnn",)}),  # the last resort of other devices
        ("flash", {"allowed": ("cudnn", "flash")}),
        ("cudnn", {"allowed": ("cudnn", "flash"), "mask": "bool"}),
        ("math", {"allowed": ("cudnn", "math")}),
    ],
)
def test_the_cuda_rules_are_those_read_from_torch(expected, fields):
    assert sdpa_kernel(cuda(**fields)).name == expected


def test_kernels_and_mask_patterns_import_no_torch():
    code = (
        "import sys, headwise.kernels, headwise.masks.patterns as p;"
        "(p.Causal() & ~p.SlidingWindow(3)).count_pairs(5, 7);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
