import threading
from contextlib import nullcontext

import pytest
import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.cost.cuda.rules import device_rules
from headwise.errors import ConfigError, UnsupportedError

BATCH, HEADS, SEQ, DIM = 3, 5, 48, 8  # a length that is a multiple of 16 but not of 32, widths that kernels can take
WIDTH = HEADS * DIM
SBH = SEQ * BATCH * WIDTH  # numbers of one activation
ASSB = HEADS * SEQ * SEQ * BATCH  # numbers of one score matrix
SIZE = {torch.float32: 4, torch.bfloat16: 2, torch.float16: 2}
FLASH_STATE = 24  # two uint64 of random state, and one unused
SEED_AND_OFFSET = 16


def saved_storages(run, *parameters):
    """Map every storage that autograd keeps for `run()`, parameters excluded, to its size, and go back once."""
    excluded = {parameter.untyped_storage()._cdata for parameter in parameters}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in excluded:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    result.sum().backward()
    return storages


def saved_bytes(run, *parameters):
    return sum(storage.nbytes() for storage in saved_storages(run, *parameters).values())


class RecordNames(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "aten":
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def heads(num_heads=HEADS, dtype=torch.bfloat16, dim=DIM, seq=SEQ, requires_grad=True):
    return torch.empty(BATCH, num_heads, seq, dim, dtype=dtype, requires_grad=requires_grad)


def kernel_that_ran(*args, **keywords):
    with RecordNames() as record:
        functional.scaled_dot_product_attention(*args, **keywords)
    prefix = "_scaled_dot_product_"
    names = [name.removeprefix(prefix) for name in record.names if name.startswith(prefix)]
    return names[0].removesuffix("_attention") if names else "math"


def naive_attention(query, key, value, *, dropout_p=0.0, mask=None, softmax_dtype=None):
    scores = query @ key.mT * DIM**-0.5
    if mask is not None:
        scores = scores.masked_fill(mask, -10.0)
    weights = functional.softmax(scores, -1, dtype=softmax_dtype)
    return functional.dropout(weights, dropout_p) @ value


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


# Attention written out


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_naive_attention_keeps_three_activations_and_its_weights(device, dtype):
    size = SIZE[dtype]
    with FakeTensorMode(), device_rules(device):
        q, k, v = heads(dtype=dtype), heads(dtype=dtype), heads(dtype=dtype)
        hidden = torch.empty(SEQ, SEQ, dtype=torch.bool)
        assert saved_bytes(lambda: naive_attention(q, k, v)) == size * (3 * SBH + ASSB)
        assert saved_bytes(lambda: naive_attention(q, k, v, mask=hidden)) == size * (3 * SBH + ASSB) + SEQ**2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dropout_of_weights_keeps_a_byte_a_score_on_cuda_and_a_number_on_cpu(dtype):
    size = SIZE[dtype]
    with FakeTensorMode():
        q, k, v = heads(dtype=dtype), heads(dtype=dtype), heads(dtype=dtype)
        with device_rules("cpu"):
            on_cpu = saved_bytes(lambda: naive_attention(q, k, v, dropout_p=0.1))
        with device_rules("cuda"):
            on_cuda = saved_bytes(lambda: naive_attention(q, k, v, dropout_p=0.1))
    assert on_cpu == 3 * size * SBH + 3 * size * ASSB
    assert on_cuda == 3 * size * SBH + (2 * size + 1) * ASSB


@pytest.mark.parametrize(("device", "dropout_p", "per_score"), [("cuda", 0.0, 6), ("cuda", 0.1, 7), ("cpu", 0.0, 2)])
def test_autocast_promotes_the_softmax_on_cuda_alone(device, dropout_p, per_score):
    # On CUDA: weights in float32, a cast to bfloat16 for the product with the values, and the mask of the dropout.
    with FakeTensorMode(), device_rules(device), autocast():
        q, k, v = heads(), heads(), heads()
        assert saved_bytes(lambda: naive_attention(q, k, v, dropout_p=dropout_p)) == 6 * SBH + per_score * ASSB


@pytest.mark.parametrize(("dropout_p", "per_score"), [(0.0, 6), (0.1, 7)])
def test_a_softmax_asked_for_in_float32_costs_the_same_without_autocast(dropout_p, per_score):
    def eager(q, k, v):  # as transformers writes it, but with the dropout before the cast
        weights = functional.softmax(q @ k.mT, -1, dtype=torch.float32)
        return functional.dropout(weights, dropout_p).to(q.dtype) @ v

    with FakeTensorMode(), device_rules("cuda"):
        q, k, v = heads(), heads(), heads()
        assert saved_bytes(lambda: eager(q, k, v)) == 6 * SBH + per_score * ASSB


def test_a_softmax_from_float16_to_float32_makes_no_copy_on_cuda_and_one_from_bfloat16_does():
    for dtype, operations in ((torch.float16, ["_softmax"]), (torch.bfloat16, ["_to_copy", "_softmax"])):
        with FakeTensorMode(), device_rules("cuda"):
            x = torch.empty(7, 11, dtype=dtype)
            for function in (functional.softmax, functional.log_softmax):
                with RecordNames() as record:
                    assert function(x, -1, dtype=torch.float32).dtype == torch.float32
                names = [name.replace("log_", "") for name in record.names]
                assert names == operations, (dtype, function)


# scaled_dot_product_attention


@pytest.mark.parametrize("kv_heads", [HEADS, 1])
@pytest.mark.parametrize("keywords", [{}, {"is_causal": True}, {"dropout_p": 0.1}])
def test_flash_keeps_query_output_small_keys_and_values_and_one_float_a_row(kv_heads, keywords):
    with FakeTensorMode(), device_rules("cuda"):
        q, k, v = heads(), heads(kv_heads), heads(kv_heads)
        run = lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **keywords)  # noqa: E731
        expected = 2 * BATCH * SEQ * (2 * WIDTH + 2 * kv_heads * DIM) + 4 * HEADS * SEQ * BATCH + FLASH_STATE
        assert saved_bytes(run) == expected
        assert kernel_that_ran(q, k, v, enable_gqa=True, **keywords) == "flash"


@pytest.mark.parametrize("mask_shape", [(SEQ, SEQ), (BATCH, 1, SEQ, SEQ), (BATCH, 1, 1, SEQ)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_mask_moves_attention_to_the_efficient_kernel_and_stays_small(dtype, mask_shape):
    size = SIZE[dtype]
    rows = 64  # the kernel rounds 48 rows of its logsumexp up to 32 at a time
    expected = 4 * size * SBH + 4 * HEADS * rows * BATCH + SEED_AND_OFFSET
    with FakeTensorMode(), device_rules("cuda"):
        q, k, v = heads(dtype=dtype), heads(dtype=dtype), heads(dtype=dtype)
        for mask in (torch.empty(mask_shape, dtype=dtype), torch.empty(mask_shape, dtype=torch.bool)):
            run = lambda mask=mask: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # noqa: E731
            assert saved_bytes(run) == expected + size * mask.numel()
            assert kernel_that_ran(q, k, v, attn_mask=mask) == "efficient"


def test_the_rows_of_a_mask_are_padded_to_eight_for_the_efficient_kernel():
    with FakeTensorMode(), device_rules("cuda"):
        q, k, v = heads(seq=13), heads(seq=13), heads(seq=13)
        mask = torch.empty(13, 13, dtype=torch.bool)
        run = lambda: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # noqa: E731
        saved = 4 * 2 * BATCH * 13 * WIDTH + 4 * HEADS * 32 * BATCH + SEED_AND_OFFSET
        assert saved_bytes(run) == saved + 2 * 13 * 16


def test_a_head_size_that_is_no_multiple_of_eight_is_padded_for_flash_and_comes_back_whole():
    with FakeTensorMode(), device_rules("cuda"):
        q, k, v = heads(dim=11), heads(dim=11), heads(dim=11)
        run = lambda: functional.scaled_dot_product_attention(q, k, v)  # noqa: E731
        assert run().shape == q.shape
        assert saved_bytes(run) == 2 * 4 * BATCH * SEQ * HEADS * 16 + 4 * HEADS * SEQ * BATCH + FLASH_STATE
        assert q.grad.shape == q.shape


@pytest.mark.parametrize(
    ("why", "kv_heads", "dim", "keywords"),
    [
        ("grouped heads with a mask", 1, DIM, {"attn_mask": (SEQ, SEQ), "enable_gqa": True}),
        ("grouped heads wider than 256", 1, 264, {"enable_gqa": True, "is_causal": True}),
        ("float64", HEADS, DIM, {"dtype": torch.float64}),
    ],
)
def test_a_silent_fall_to_the_quadratic_kernel_shows(why, kv_heads, dim, keywords):
    keywords = dict(keywords)
    dtype = keywords.pop("dtype", torch.bfloat16)
    size = 8 if dtype == torch.float64 else 4  # narrow numbers are widened to float32 first
    with FakeTensorMode(), device_rules("cuda"):
        if "attn_mask" in keywords:
            keywords["attn_mask"] = torch.empty(keywords["attn_mask"], dtype=dtype)
        q, k, v = heads(dtype=dtype, dim=dim), heads(kv_heads, dtype, dim), heads(kv_heads, dtype, dim)
        run = lambda: functional.scaled_dot_product_attention(q, k, v, **keywords)  # noqa: E731
        storages = saved_storages(run)
        assert sum(s.nbytes() for s in storages.values()) == size * (3 * BATCH * SEQ * HEADS * dim + ASSB)
        assert max(s.nbytes() for s in storages.values()) in (size * ASSB, size * BATCH * SEQ * HEADS * dim)
        assert kernel_that_ran(q, k, v, **keywords) == "math"


def test_dropout_in_the_quadratic_kernel_keeps_a_byte_a_score():
    with FakeTensorMode(), device_rules("cuda"):
        q, k, v = heads(), heads(1), heads(1)
        mask = torch.empty(SEQ, SEQ, dtype=torch.bfloat16)
        run = lambda: functional.scaled_dot_product_attention(q, k, v, mask, 0.1, enable_gqa=True)  # noqa: E731
        assert saved_bytes(run) == 12 * SBH + 9 * ASSB


@pytest.mark.parametrize(
    ("capability", "dtype", "keywords", "kernel"),
    [
        ((8, 0), torch.bfloat16, {}, "flash"),
        ((9, 0), torch.bfloat16, {}, "cudnn"),
        ((9, 0), torch.float32, {}, "efficient"),
        ((7, 5), torch.float16, {}, "efficient"),
        ((9, 0), torch.bfloat16, {"attn_mask": "plain"}, "cudnn"),
        ((9, 0), torch.bfloat16, {"attn_mask": "learned"}, "efficient"),
        ((8, 0), torch.bfloat16, {"attn_mask": "turned"}, "math"),
        ((8, 0), torch.bfloat16, {"attn_mask": "plain", "is_causal": True}, "efficient"),
    ],
)
def test_the_kernel_is_the_one_of_the_device(capability, dtype, keywords, kernel):
    with FakeTensorMode(), device_rules("cuda", compute_capability=capability):
        masks = {
            "plain": torch.empty(SEQ, SEQ, dtype=dtype),
            "learned": torch.empty(SEQ, SEQ, dtype=dtype, requires_grad=True),
            "turned": torch.empty(SEQ, SEQ, dtype=dtype).T,
        }
        keywords = {**keywords, **({"attn_mask": masks[keywords["attn_mask"]]} if "attn_mask" in keywords else {})}
        q, k, v = heads(dtype=dtype), heads(dtype=dtype), heads(dtype=dtype)
        assert kernel_that_ran(q, k, v, **keywords) == kernel


def test_shapes_that_no_fused_kernel_takes_run_the_quadratic_one():
    with FakeTensorMode(), device_rules("cuda"):
        three = torch.empty(5, 7, 8, dtype=torch.bfloat16, requires_grad=True)
        two = torch.empty(7, 8, dtype=torch.bfloat16, requires_grad=True)
        one_head, one_text = heads(1), heads()[:1]
        for q, k, v in (
            (three, three, three),
            (two, two, two),
            (heads(), one_head, one_head),
            (heads(), one_text, one_text),
        ):
            functional.scaled_dot_product_attention(q, k, v).sum().backward()
            assert kernel_that_ran(q, k, v) == "math", (q.shape, k.shape)
        assert kernel_that_ran(heads(), heads(1), heads(), enable_gqa=True) == "math"


def test_the_kernels_that_the_user_allows_are_respected():
    with FakeTensorMode(), device_rules("cuda"):
        q = heads()
        with sdpa_kernel(SDPBackend.MATH):
            assert kernel_that_ran(q, q, q) == "math"
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            assert kernel_that_ran(q, q, q) == "efficient"
            with pytest.raises(UnsupportedError, match="efficient is not taken: it serves float32"):
                kernel_that_ran(q.double(), q.double(), q.double())


def test_malformed_calls_fail_in_torchs_own_words_and_empty_ones_do_not():
    with FakeTensorMode(), device_rules("cuda"):
        q = heads()
        with pytest.raises(RuntimeError, match="same dtype"):
            functional.scaled_dot_product_attention(q, q.float(), q)
        with pytest.raises(RuntimeError, match="attn_mask dtype"):
            functional.scaled_dot_product_attention(q, q, q, attn_mask=torch.empty(SEQ, SEQ, dtype=torch.int64))
        assert functional.scaled_dot_product_attention(q[:, :, :0], q, q).shape == (BATCH, HEADS, 0, DIM)
        no_numbers = heads(dim=0)
        assert functional.scaled_dot_product_attention(no_numbers, no_numbers, no_numbers).shape[-1] == 0


def test_a_learned_mask_gets_its_gradient():
    with FakeTensorMode(), device_rules("cuda"):
        mask = torch.empty(SEQ, SEQ, dtype=torch.bfloat16, requires_grad=True)
        functional.scaled_dot_product_attention(heads(), heads(), heads(), attn_mask=mask).sum().backward()
        assert mask.grad.shape == mask.shape


def test_without_gradients_the_efficient_kernel_makes_no_logsumexp():
    with FakeTensorMode(), device_rules("cuda"), torch.no_grad():
        q = heads(dtype=torch.float32)
        outputs = []

        class Outputs(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                outputs.append(func(*args, **(kwargs or {})))
                return outputs[-1]

        with Outputs():
            functional.scaled_dot_product_attention(q, q, q)
        assert outputs[-1][1].shape == (BATCH, HEADS, 0)


def test_a_kernel_that_cannot_train_runs_where_nothing_trains():
    with FakeTensorMode(), device_rules("cuda", compute_capability=(8, 9)):
        wide = heads(dim=200)
        assert kernel_that_ran(wide, wide, wide) == "efficient"
        with torch.no_grad():
            assert kernel_that_ran(wide, wide, wide) == "flash"


def test_attention_inside_torchs_own_modules_is_seen():
    with FakeTensorMode(), device_rules("cuda"):
        x = torch.empty(7, 3, 16, dtype=torch.bfloat16)
        mha = torch.nn.MultiheadAttention(16, 2, dtype=torch.bfloat16)
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dtype=torch.bfloat16)
        for run in (lambda: mha(x, x, x, need_weights=False), lambda: layer(x)):
            with RecordNames() as record:
                run()
            assert "_scaled_dot_product_flash_attention" in record.names


def test_what_a_checkpoint_computes_again_follows_the_rules_too():
    with FakeTensorMode(), device_rules("cuda"):
        q = heads()

        def run():
            attend = functional.scaled_dot_product_attention
            return torch.utils.checkpoint.checkpoint(attend, q, q, q, use_reentrant=False, preserve_rng_state=False)

        with RecordNames() as record:
            run().sum().backward()
    flash = "_scaled_dot_product_flash_attention"
    assert [name for name in record.names if name.startswith("_scaled_dot")] == [flash, flash, f"{flash}_backward"]


# Operations


def test_dropout_keeps_a_byte_a_number_on_cuda_and_nothing_where_it_does_nothing():
    with FakeTensorMode(), device_rules("cuda"):
        x = torch.empty(7, 11, dtype=torch.bfloat16, requires_grad=True)
        assert saved_bytes(lambda: functional.dropout(x, 0.3)) == 77
        assert saved_bytes(lambda: functional.dropout(x, 0.3, training=False)) == 0
        assert saved_bytes(lambda: functional.dropout(x, 0.0)) == 0
        assert functional.dropout(x, 1.0).shape == x.shape
    with FakeTensorMode(), device_rules("cpu"):
        x = torch.empty(7, 11, dtype=torch.bfloat16, requires_grad=True)
        assert saved_bytes(lambda: functional.dropout(x, 0.3)) == 2 * 77


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_keeps_its_input_and_two_float32_a_row_on_cuda(dtype):
    with FakeTensorMode(), device_rules("cuda"):
        x = torch.empty(7, 11, dtype=dtype, requires_grad=True)
        weight, bias = (torch.nn.Parameter(torch.empty(11, dtype=dtype)) for _ in range(2))
        run = lambda: functional.layer_norm(x, (11,), weight, bias)  # noqa: E731
        assert saved_bytes(run, weight, bias) == SIZE[dtype] * 77 + 2 * 4 * 7
        assert [g.grad.dtype for g in (x, weight, bias)] == [dtype] * 3
        assert saved_bytes(lambda: functional.layer_norm(x, (11,))) == SIZE[dtype] * 77 + 2 * 4 * 7


def test_layer_norm_of_a_frozen_input_gives_the_weight_its_gradient():
    with FakeTensorMode(), device_rules("cuda"):
        weight = torch.nn.Parameter(torch.empty(11, dtype=torch.bfloat16))
        functional.layer_norm(torch.empty(7, 11, dtype=torch.bfloat16), (11,), weight).sum().backward()
        assert weight.grad.shape == (11,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_keeps_its_input_and_one_float32_a_row_on_cuda_and_two_wide_copies_on_cpu(dtype):
    with FakeTensorMode():
        x = torch.empty(7, 11, dtype=dtype, requires_grad=True)
        weight = torch.nn.Parameter(torch.empty(11, dtype=dtype))
        run = lambda: functional.rms_norm(x, (11,), weight)  # noqa: E731
        with device_rules("cuda"):
            assert saved_bytes(run, weight) == SIZE[dtype] * 77 + 4 * 7
            assert x.grad.dtype == weight.grad.dtype == dtype
        with device_rules("cpu"):
            assert saved_bytes(run, weight) == 2 * 4 * 77 + 4 * 7


def test_rms_norm_of_two_dtypes_is_written_out_on_cuda_too():
    with FakeTensorMode(), device_rules("cuda"):
        x = torch.empty(7, 11, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.nn.Parameter(torch.empty(11))
        with pytest.warns(UserWarning, match="Cannot dispatch to fused implementation"):  # torch's own, there as here
            assert saved_bytes(lambda: functional.rms_norm(x, (11,), weight), weight) == 2 * 4 * 77 + 4 * 7


# The scope of the rules


def dispatch_tables():
    names = torch._C._dispatch_get_all_op_names()
    return {name: torch._C._dispatch_dump_table(name) for name in names if name.startswith("aten::")}


def test_afterwards_every_operation_is_dispatched_as_before():
    before = dispatch_tables()
    with device_rules("cuda"), device_rules("cpu"), device_rules("cuda", compute_capability=(9, 0)):
        assert dispatch_tables() != before
    assert dispatch_tables() == before
    with pytest.raises(KeyError), device_rules("cuda"):
        raise KeyError
    assert dispatch_tables() == before


def real_results():
    torch.manual_seed(0)
    q = torch.randn(2, 3, 5, 8, requires_grad=True)
    output = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    output = functional.dropout(functional.rms_norm(output, (8,)), 0.5)
    with autocast():
        output = functional.softmax(functional.layer_norm(output.bfloat16(), (8,)), -1)
    storages = saved_storages(lambda: output * output)
    return output.detach(), q.grad, sorted(storage.nbytes() for storage in storages.values()), output.dtype


def test_tensors_with_values_are_not_concerned():
    before = real_results()
    with device_rules("cuda"):
        inside = real_results()
    after = real_results()
    for result in (inside, after):
        assert torch.equal(result[0], before[0])
        assert torch.equal(result[1], before[1])
        assert result[2:] == before[2:]


def test_another_thread_is_not_concerned():
    kernels = []

    def run():
        with FakeTensorMode():
            q = heads()
            kernels.append(kernel_that_ran(q, q, q))

    with device_rules("cuda"):
        run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert kernels == ["flash", "flash_attention_for_cpu"]


def test_threads_that_overlap_leave_nothing_behind():
    before = dispatch_tables()
    is_inside, may_leave = threading.Event(), threading.Event()

    def stay():
        with device_rules("cuda"):
            is_inside.set()
            may_leave.wait()

    thread = threading.Thread(target=stay)
    with device_rules("cuda"):
        thread.start()
        is_inside.wait()
    with device_rules("cuda"), FakeTensorMode():
        q = heads()
        assert kernel_that_ran(q, q, q) == "flash"
    may_leave.set()
    thread.join()
    assert dispatch_tables() == before


def test_of_nested_rules_the_innermost_counts():
    with FakeTensorMode(), device_rules("cuda"):
        q = heads()
        with device_rules("cpu"):
            assert kernel_that_ran(q, q, q) == "flash_attention_for_cpu"
            with device_rules("cuda", compute_capability=(9, 0)):
                assert kernel_that_ran(q, q, q) == "cudnn"
        assert kernel_that_ran(q, q, q) == "flash"


def test_the_cpu_has_no_rules_of_its_own():
    for rules in (device_rules("cpu"), nullcontext()):
        with FakeTensorMode(), rules:
            q = heads(dtype=torch.float32)
            run = lambda q=q: functional.scaled_dot_product_attention(q, q, q)  # noqa: E731
            assert saved_bytes(run) == 4 * 2 * SBH + 4 * HEADS * SEQ * BATCH


def test_a_device_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match=r'device must be "cpu" or "cuda"; got .tpu.'), device_rules("tpu"):
        pass
