"""Run training steps over real processes and write down what each holds: `python ranks.py CASES.json FOLDER`.

A case is an object: `name`, `ranks`, `family` and `config` (of transformers), `kind` of sharding, `batch`, `seq`, and
settings that `STRATEGIES` read. The processes of one number of ranks are forked from here, so that torch and
transformers are imported once, meet over a file in FOLDER, and run all their cases; each writes
`FOLDER/RANKS-RANK.json`.
"""

import gc
import json
import multiprocessing
import os
import signal
import sys
from bisect import bisect_right
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from headwise.cost.running.peaks import CpuPeaks

SECONDS = 200  # after which a process that hangs ends itself
NUM_STEPS = 3  # the first makes the optimizer's states, and DDP orders its buckets anew in the second
MARK_BYTES = 1
RANGE = "headwise: "
COLLECTIVE = "collective"
COLLECTIVES = (COLLECTIVE, "c10d::")
MOMENTS = ("forward", "backward", "optimizer step")
SENT = Counter()
PLAN = {
    "self_attn.q_proj": ColwiseParallel,
    "self_attn.k_proj": ColwiseParallel,
    "self_attn.v_proj": ColwiseParallel,
    "self_attn.o_proj": RowwiseParallel,
    "mlp.gate_proj": ColwiseParallel,
    "mlp.up_proj": ColwiseParallel,
    "mlp.down_proj": RowwiseParallel,
}


def replicate(model, case, mesh):
    views = case["gradients_are_views"]
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=views, init_sync=False)  # seeds are equal
    return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=1e-3)


def shard(model, case, mesh):
    policy = MixedPrecisionPolicy()
    if case["precision"] == "amp-bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    reshards = case["kind"] == "zero3"
    base = getattr(model, model.base_model_prefix)
    for layer in base.layers if hasattr(base, "layers") else base.h:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshards)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=None if reshards else False)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def split_heads(model, case, mesh):
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {name: style() for name, style in PLAN.items()})
    head = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh, {"lm_head": head})
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


class RingAttention(torch.autograd.Function):
    """torch's ring around the CPU's fused kernel, which it does not come with."""

    @staticmethod
    def forward(ctx, query, key, value):
        output, logsumexp = ring._templated_ring_attention(
            dist.group.WORLD, 2, cpu_attention, query, key, value, is_causal=True
        )
        ctx.save_for_backward(query, key, value, output, logsumexp)
        return output

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, output, logsumexp = ctx.saved_tensors
        return ring._templated_ring_attention_backward(
            dist.group.WORLD,
            2,
            cpu_attention_backward,
            gradient,
            "grad_out",
            query,
            key,
            value,
            output,
            logsumexp,
            True,
        )


def cpu_attention(query, key, value, is_causal):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, is_causal=is_causal)


def cpu_attention_backward(grad_out, query, key, value, out, logsumexp, is_causal):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, 0.0, is_causal
    )


def ring_around(model, case, mesh):
    ring._cp_options.enable_load_balance = False
    ring.set_rotate_method("alltoall")

    def attend(module, query, key, value, attention_mask, **_settings):
        return RingAttention.apply(query, key, value).transpose(1, 2), None

    transformers.AttentionInterface.register("ring", attend)
    model.set_attn_implementation("ring")
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


STRATEGIES = {
    "zero1": replicate,
    "zero2": shard,
    "zero3": shard,
    "tensor": split_heads,
    "context": ring_around,
}


def run(case, mesh):
    """Run some steps; return the bytes that stand between them, and what the last held above them and sent."""
    torch.manual_seed(0)
    dist.barrier()
    gc.collect()
    peaks = OwnPeaks()
    with peaks.profiler:
        with peaks.moment("build"):
            config = transformers.AutoConfig.for_model(case["family"], **case["config"])
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
            content = model.config.to_dict() | {"architectures": [type(model).__name__]}
            if case["checkpoint"] == "full":
                model.activation_checkpointing_enable()
            model, optimizer = STRATEGIES[case["kind"]](model.train(), case, mesh)
            length = case["seq"] // (case["ranks"] if case["kind"] == "context" else 1)
            ids = torch.randint(3, case["config"]["vocab_size"], (case["batch"], length))
            labels = ids.clone()
        for step in range(NUM_STEPS):
            SENT.clear()
            for _ in range(case["accumulation"]):
                with peaks.moment(f"{step}: forward"):
                    loss = model(input_ids=ids, labels=labels, use_cache=False).loss
                with peaks.moment(f"{step}: backward"):
                    loss.backward()
                    del loss
            with peaks.moment(f"{step}: optimizer step"):
                optimizer.step()
            with peaks.moment(f"{step}: end"):
                optimizer.zero_grad(set_to_none=True)
            with peaks.moment(f"{step}: between"):
                torch.empty(MARK_BYTES, dtype=torch.uint8)  # the bytes are read at allocations
    peaks.read()
    return {
        "content": content,
        "parameter_bytes": local_bytes(model.parameters()),
        "state_bytes": local_bytes(tensors_in(optimizer)),
        "standing_bytes": standing_bytes(model, optimizer, ids, labels),
        "sent_bytes": sum(SENT.values()),
        "held_bytes": read_last_step(peaks.bytes_by_moment),
    }


class OwnPeaks(CpuPeaks):
    """Peaks of what the step itself allocates: not of what gloo allocates within a collective and frees there.

    A reduce-scatter of gloo copies its input, and divides what comes of it: a few bytes of a division are the peak if
    they are taken for the step's own.
    """

    def read(self):
        events = self.profiler.profiler.kineto_results.events()
        collectives = merge((one.start_ns(), one.end_ns()) for one in events if one.name().startswith(COLLECTIVES))
        beginnings = [begin for begin, _ in collectives]
        ranges = sorted((one.start_ns(), one.name()) for one in events if one.name().startswith(RANGE))
        starts = [start for start, _ in ranges]
        changes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
        self.bytes_by_moment = {name.removeprefix(RANGE): 0 for _, name in ranges}
        current_bytes = 0
        for time_ns, num_bytes in changes:
            current_bytes += num_bytes
            collective, place = bisect_right(beginnings, time_ns) - 1, bisect_right(starts, time_ns) - 1
            is_inside = collective >= 0 and time_ns <= collectives[collective][1]
            if place >= 0 and not is_inside:
                name = ranges[place][1].removeprefix(RANGE)
                self.bytes_by_moment[name] = max(self.bytes_by_moment[name], current_bytes)


def merge(spans):
    """Join spans of time that hold one another."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def read_last_step(bytes_by_moment):
    """Return what the last step held at most above its beginning, by moment."""
    last = NUM_STEPS - 1
    before = bytes_by_moment[f"{last - 1}: between"] - MARK_BYTES
    return {name: bytes_by_moment[f"{last}: {name}"] - before for name in MOMENTS}


def standing_bytes(model, optimizer, *inputs):
    """Add up what lives from step to step: weights, buffers, states, inputs, and the buckets of DDP."""
    buckets = 0
    if isinstance(model, DistributedDataParallel):
        sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        buckets = sum(int(size) for size in sizes.split(","))
    return buckets + local_bytes([*model.parameters(), *model.buffers(), *tensors_in(optimizer), *inputs])


def tensors_in(optimizer):
    """List an optimizer's states; of one that is shared out, this process's."""
    own = getattr(optimizer, "optim", optimizer)
    return [state for states in own.state.values() for state in states.values()]


def local_bytes(tensors):
    """Add up the memory behind the parts of tensors that this process has."""
    storages = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storages[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return sum(storages.values())


class OneThread(dist.ProcessGroupGloo):
    """gloo with one thread for its operations: it has let go of the tensors of one when it begins the next."""

    def __init__(self, store, rank, size, timeout):
        options = dist.ProcessGroupGloo._Options()
        options._devices, options._threads, options._timeout = [self.create_default_device()], 1, timeout
        super().__init__(store, rank, size, options)


def watch(module, name, times):
    """Count what a collective operation sends, as `times` the largest tensor given to it, and let its thread finish.

    Tensors in flight are then those that Python holds, however busy the machine is: without, gloo's threads drop their
    hold whenever they come to it.
    """
    function, marker = getattr(module, name), torch.zeros(1)

    def counted(*args, **keywords):
        tensors = [one for one in (*args, *keywords.values()) if isinstance(one, torch.Tensor)]
        SENT[name] += int(times * max(one.numel() * one.element_size() for one in tensors))
        if "async_op" not in keywords:
            result = function(*args, **keywords)
            dist.all_reduce(marker)
            return result
        with torch.profiler.record_function(COLLECTIVE):  # beginning and end of what gloo makes for itself
            work = function(*args, **keywords | {"async_op": True})
            work.wait()
            dist.all_reduce(marker)
            return work if keywords["async_op"] else None

    setattr(module, name, counted)


def serve(rank, ranks, cases, folder):
    """Be one process of a group."""
    signal.alarm(SECONDS)
    torch.backends.mkldnn.set_flags(False)  # whose kernels for narrow numbers take memory of their own
    os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"] = str(rank), str(ranks), str(rank)
    torch.set_num_threads(1)
    watch(dist, "all_gather_single", (ranks - 1) / ranks)  # of what comes out
    watch(dist, "reduce_scatter_single", (ranks - 1) / ranks)
    watch(collectives, "all_gather_single", ranks - 1)  # of what goes in
    watch(collectives, "all_reduce", 2 * (ranks - 1) / ranks)
    watch(collectives, "permute_tensor", 1)
    watch(collectives, "wait_tensor", 0)
    dist.distributed_c10d.ProcessGroupGloo = OneThread
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{ranks}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    results = {case["name"]: run(case, mesh) for case in cases}
    (folder / f"{ranks}-{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def main():
    """Fork the processes of each number of ranks, wait for them, and end those that are left when one fails."""
    cases, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    context = multiprocessing.get_context("fork")
    gc.freeze()  # what is imported needs no second look in each process
    for ranks in sorted({case["ranks"] for case in cases}):
        own = [case for case in cases if case["ranks"] == ranks]
        processes = [context.Process(target=serve, args=(rank, ranks, own, folder)) for rank in range(ranks)]
        for process in processes:
            process.start()
        waiting = {process.sentinel: process for process in processes}
        while waiting:
            for sentinel in multiprocessing.connection.wait(list(waiting)):
                if waiting.pop(sentinel).exitcode:
                    for process in processes:
                        process.kill()
                    sys.exit(1)


if __name__ == "__main__":
    main()
