"""Tracebacks around an out-of-memory error, in every form they are written in, and what was at work in them."""

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.cost.oom.at_work import OPERATIONS, find_operation
from headwise.cost.oom.messages import read_message
from headwise.cost.oom.results import Frame
from headwise.cost.oom.traceback import operation_of, read_frames

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 31.73 GiB"

PYTHON = f"""\
Traceback (most recent call last):
  File "/home/me/train.py", line 31, in <module>
    loss = model(batch).loss
           ^^^^^^^^^^^^
  File "/lib/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ~~~~~~~~~~~~~~~^^^^^^^^^^^^^^^^^
  File "<string>", line 3, in forward
  File "/lib/transformers/models/bert/modeling_bert.py", line 127, in eager_attention_forward
    attn_weights = torch.matmul(query, key.transpose(2, 3)) * scaling
                   ~~~~~~~~~~~~^^^^^^^^^^^^^^^^^^^^^^^^^^^
{OOM}
"""
FRAMES = (
    Frame(file="/home/me/train.py", line=31, function="<module>", code="loss = model(batch).loss"),
    Frame(
        file="/lib/torch/nn/modules/module.py",
        line=1751,
        function="_wrapped_call_impl",
        code="return self._call_impl(*args, **kwargs)",
    ),
    Frame(file="<string>", line=3, function="forward"),
    Frame(
        file="/lib/transformers/models/bert/modeling_bert.py",
        line=127,
        function="eager_attention_forward",
        code="attn_weights = torch.matmul(query, key.transpose(2, 3)) * scaling",
    ),
)


def prefixed(text, prefix):
    return "\n".join(prefix + line for line in text.splitlines())


FORMS = {
    "Python": PYTHON,
    "Windows": PYTHON.replace("\n", "\r\n"),
    "a rank": prefixed(PYTHON, "[rank0]: "),
    "a time": prefixed(PYTHON, "2024-05-01 12:00:00,123 ERROR "),
    "an engine": "\n".join(
        f"(EngineCore pid=104) ERROR 05-05 12:36:{second:02d} [core.py:{1130 + second}] {line}"
        for second, line in enumerate(PYTHON.splitlines())
    ),
    "a quotation": prefixed(PYTHON, "> "),
    "colours": PYTHON.replace('"/', '\x1b[35m"/').replace('py"', 'py"\x1b[0m'),
    "JSON": json.dumps({"level": "error", "text": PYTHON}),
    "JSON within JSON": json.dumps(json.dumps({"text": PYTHON})),
    "a representation": repr(PYTHON),
    "a log": "epoch 1\n" * 2000 + PYTHON + "epoch 2\n" * 2000,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_frame_is_read_in_every_form(form):
    assert read_frames(FORMS[form]) == FRAMES


def test_a_traceback_on_one_line_is_read():
    frames = read_frames(
        'File "/a/module.py", line 900, in _apply module._apply(fn) File "/a/module.py", line 1326, in convert '
        f"return t.to( ^^^^^ {OOM}"
    )
    assert [(frame.line, frame.function, frame.code) for frame in frames] == [
        (900, "_apply", "module._apply(fn)"),
        (1326, "convert", "return t.to("),
    ]


def test_paths_of_windows_are_kept_and_a_file_that_a_terminal_broke_is_joined():
    frames = read_frames(
        '  File "C:\\new\\train.py", line 3, in main\n    y = f(x)\n'
        f'  File "/lib/python3.12/site-packages/torch/nn/modu\nles/linear.py", line 125, in forward\n    pass\n{OOM}'
    )
    assert [frame.file for frame in frames] == [
        "C:\\new\\train.py",
        "/lib/python3.12/site-packages/torch/nn/modules/linear.py",
    ]


IPYTHON = f"""\
---------------------------------------------------------------------------
OutOfMemoryError                          Traceback (most recent call last)
Cell In[5], line 3
      1 model.train()
----> 3     loss = model(batch).loss

File /lib/torch/nn/modules/module.py:1518, in Module._wrapped_call_impl(self, *args, **kwargs)
   1517 else:
-> 1518     return self._call_impl(*args, **kwargs)

File C:\\env\\torch\\nn\\functional.py:2248, in log_softmax(input, dim, _stacklevel, dtype)
-> 2248     ret = input.log_softmax(dim)
   2249 else:

{OOM}
"""
OLD_IPYTHON = f"""\
RuntimeError                              Traceback (most recent call last)
<ipython-input-4-8352503114b9> in <module>()
----> 1 torch.cuda.FloatTensor([1])

~/env/lib/python3.6/site-packages/torch/nn/functional.py in linear(input, weight, bias)
   1369     else:
-> 1370         output = input.matmul(weight.t())
   1371         if bias is not None:

a word in between
{OOM}
"""
RICH = f"""\
╭──────────────────── Traceback (most recent call last) ─────────────────────╮
│ /content/train.py:12 in <module>                                           │
│                                                                            │
│    9 │                                                                     │
│ ❱ 12 │   out = model(x)                                                    │
│                                                                            │
│ C:\\env\\attention.py:629 in _attention                                      │
│    627 │   │   │   alpha=self.scale,                                       │
│ ❱  629 │   │   attention_probs = attention_scores.softmax(dim=-1)          │
╰────────────────────────────────────────────────────────────────────────────╯
{OOM}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            IPYTHON,
            [
                ("Cell In[5]", 3, "<module>", "loss = model(batch).loss"),
                (
                    "/lib/torch/nn/modules/module.py",
                    1518,
                    "Module._wrapped_call_impl",
                    "return self._call_impl(*args, **kwargs)",
                ),
                ("C:\\env\\torch\\nn\\functional.py", 2248, "log_softmax", "ret = input.log_softmax(dim)"),
            ],
        ),
        (
            OLD_IPYTHON,
            [
                ("<ipython-input-4-8352503114b9>", 1, "<module>", "torch.cuda.FloatTensor([1])"),
                (
                    "~/env/lib/python3.6/site-packages/torch/nn/functional.py",
                    1370,
                    "linear",
                    "output = input.matmul(weight.t())",
                ),
            ],
        ),
        (
            RICH,
            [
                ("/content/train.py", 12, "<module>", "out = model(x)"),
                (
                    "C:\\env\\attention.py",
                    629,
                    "_attention",
                    "attention_probs = attention_scores.softmax(dim=-1)",
                ),
            ],
        ),
    ],
    ids=["IPython", "IPython of 2018", "rich"],
)
def test_notebooks_and_boxes_are_read(text, expected):
    assert [(frame.file, frame.line, frame.function, frame.code) for frame in read_frames(text)] == expected


def test_a_frame_without_its_line_of_code_takes_no_other_line():
    text = '  File "a.py", line 1, in f\n  the log goes on\n  File "b.py", line 2, in g\n    y = x\n'
    assert [frame.code for frame in read_frames(text)] == [None, "y = x"]
    box = "│ /a.py:1 in f │\n│ a file that is gone │\n│ /b.py:2 in g │\n│ ❱ 2 │ y = x │\n"
    assert [frame.code for frame in read_frames(box)] == [None, "y = x"]


def traceback_of(function, error):
    return f'Traceback (most recent call last):\n  File "a.py", line 1, in {function}\n    {function}(x)\n{error}\n'


def test_of_chained_exceptions_the_one_that_ran_out_of_memory_is_read():
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    text = traceback_of("first", OOM) + chain + traceback_of("cleanup", "KeyError: 3")
    assert [frame.function for frame in read_frames(text)] == ["first"]
    text = traceback_of("load", "KeyError: 3") + chain + traceback_of("second", OOM)
    assert [frame.function for frame in read_frames(text)] == ["second"]


def test_without_an_error_of_memory_the_last_traceback_is_read():
    text = traceback_of("first", "KeyError: 1") + traceback_of("second", "KeyError: 2")
    assert [frame.function for frame in read_frames(text)] == ["second"]


def test_ranks_that_write_in_between_each_other_are_told_apart():
    healthy = prefixed(traceback_of("wait", "DistBackendError: remote peer"), "[rank0]: ").splitlines()
    failed = prefixed(traceback_of("scores", OOM), "[rank1]: ").splitlines()
    woven = [line for pair in zip(healthy, failed, strict=True) for line in pair]
    assert [frame.function for frame in read_frames("\n".join(woven))] == ["scores"]


def test_a_text_without_a_traceback_has_no_frames():
    assert read_frames(f"a tensor in memory -> it was\n{OOM}") == ()
    assert read_message(OOM).traceback == ()


def test_a_message_carries_its_traceback():
    assert read_message(PYTHON).traceback == FRAMES


# What was at work: the innermost frames, as in published tracebacks and in the sources of transformers and torch.
TORCH = "/lib/torch/nn/functional.py"
MODEL = "/lib/transformers/models/llama/modeling_llama.py"
AT_WORK = [
    ("scores", [(MODEL, "eager_attention_forward", "attn_weights = torch.matmul(query, key_states.transpose(2, 3))")]),
    ("scores", [("bloom.py", "forward", "attention_scores = alibi.baddbmm(batch1=query, batch2=key)")]),
    ("scores", [("gpt.py", "forward", "att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))")]),
    ("scores", [(MODEL, "eager_attention_forward", "attn_weights = attn_weights + attention_mask")]),
    (
        "scores",
        [(MODEL, "f", "attn_weights = dropout(attn_weights, p=0.1)"), (TORCH, "dropout", "_VF.dropout(input, p)")],
    ),
    (
        "softmax",
        [
            (MODEL, "eager_attention_forward", "attn_weights = nn.functional.softmax(attn_weights, dim=-1)"),
            (TORCH, "softmax", "ret = input.softmax(dim, dtype=dtype)"),
        ],
    ),
    ("logits", [("sample.py", "f", "p = F.softmax(logits, dim=-1)"), (TORCH, "softmax", "ret = input.softmax(dim)")]),
    ("softmax", [("bert.py", "forward", "attention_probs = attention_scores.softmax(dim=-1)")]),
    ("softmax", [("own.py", "forward", "y = self.normalise(x)"), (TORCH, "softmax", "ret = input.softmax(dim)")]),
    (
        "attention output",
        [(MODEL, "eager_attention_forward", "attn_output = torch.matmul(attn_weights, value_states)")],
    ),
    ("repeated keys", [(MODEL, "repeat_kv", "return hidden_states.reshape(batch, heads * n_rep, slen, head_dim)")]),
    (
        "sdpa",
        [
            ("sdpa_attention.py", "sdpa_attention_forward", "attn_output = torch.nn.functional.scaled_dot_product_"),
        ],
    ),
    ("sdpa", [("xformers/ops/fmha/flash.py", "_memory_efficient_attention_forward", "out = op.apply(inp)")]),
    ("logits", [(MODEL, "forward", "logits = self.lm_head(hidden_states[:, slice_indices, :])")]),
    ("logits", [("vllm/sampler.py", "forward", "logits = logits.to(torch.float32)")]),
    (
        "logits",
        [
            ("loss_utils.py", "ForCausalLMLoss", "loss = fixed_cross_entropy(logits, labels, vocab_size)"),
            (TORCH, "cross_entropy", "return torch._C._nn.cross_entropy_loss(input, target)"),
        ],
    ),
    (
        "logits",
        [("lm_eval/huggingface.py", "_loglikelihood", "multi_logits = F.log_softmax("), (TORCH, "log_softmax", "x")],
    ),
    (
        "feed-forward",
        [
            (MODEL, "forward", "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"),
            ("/lib/torch/nn/modules/module.py", "_call_impl", "return forward_call(*args, **kwargs)"),
            ("/lib/torch/nn/modules/linear.py", "forward", "return F.linear(input, self.weight, self.bias)"),
        ],
    ),
    ("feed-forward", [("x.py", "forward", "y = self.block(x)"), (TORCH, "gelu", "return torch._C._nn.gelu(input)")]),
    ("embedding", [(MODEL, "forward", "inputs_embeds = self.embed_tokens(input_ids)"), (TORCH, "embedding", "return")]),
    (
        "norm",
        [(MODEL, "forward", "return self.weight * hidden_states.to(input_dtype)"), (TORCH, "layer_norm", "return")],
    ),
    (
        "norm",
        [(MODEL, "forward", "hidden_states = self.input_layernorm(hidden_states)"), (MODEL, "forward", "x.pow(2)")],
    ),
    ("projection", [(MODEL, "forward", "query_states = self.q_proj(hidden_states).view(hidden_shape)")]),
    ("rotary", [(MODEL, "rotate_half", "return torch.cat((-x2, x1), dim=-1)")]),
    ("mask", [("masking_utils.py", "create_causal_mask", "return mask.expand(batch_size, -1, -1, -1)")]),
    (
        "cache",
        [("/lib/transformers/cache_utils.py", "update", "self.keys = torch.cat([self.keys, key_states], dim=-2)")],
    ),
    ("optimizer", [("/lib/torch/optim/adam.py", "_init_group", 'state["exp_avg"] = torch.zeros_like(')]),
    ("optimizer", [("C:\\lib\\torch\\optim\\adamw.py", "_multi_tensor_adamw", "denom = torch._foreach_sqrt(x)")]),
    ("optimizer", [("train.py", "main", "optimizer.step()")]),
    ("gradients", [("train.py", "main", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")]),
    (
        "backward",
        [
            ("train.py", "main", "loss.backward()"),
            ("/lib/torch/_tensor.py", "backward", "torch.autograd.backward("),
            ("/lib/torch/autograd/graph.py", "_engine_run_backward", "return Variable._execution_engine.run_backward("),
        ],
    ),
    (
        "scores",  # computed again in backward, by checkpointing
        [
            ("train.py", "main", "loss.backward()"),
            ("/lib/torch/utils/checkpoint.py", "backward", "outputs = ctx.run_function(*detached_inputs)"),
            (MODEL, "eager_attention_forward", "attn_weights = torch.matmul(query, key.transpose(2, 3)) * scaling"),
        ],
    ),
    (
        "weights",
        [
            ("app.py", "main", "pipe.to(device)"),
            ("/lib/torch/nn/modules/module.py", "_apply", "param_applied = fn(param)"),
            ("/lib/torch/nn/modules/module.py", "convert", "return t.to("),
        ],
    ),
    ("weights", [("t.py", "main", "model = AutoModel.from_pretrained(name)"), ("modeling_utils.py", "load", "x = y")]),
    (
        "inputs",
        [("train.py", "main", "input_ids = batch['input_ids'].cuda()"), ("train.py", "main", "batch.to(device)")],
    ),
    (
        None,
        [("train.py", "main", "y = f(x)"), ("/lib/torch/nn/modules/linear.py", "forward", "return F.linear(input)")],
    ),
    (None, []),
]


@pytest.mark.parametrize(("expected", "lines"), AT_WORK, ids=lambda value: value if isinstance(value, str) else None)
def test_what_was_at_work_is_named(expected, lines):
    frames = tuple(
        Frame(file=file, line=number, function=function, code=code)
        for number, (file, function, code) in enumerate(lines, start=1)
    )
    assert operation_of(frames) == expected
    assert expected is None or expected in OPERATIONS


def test_the_line_that_says_what_was_at_work_is_given():
    operation = find_operation(FRAMES)
    assert operation.name == "scores"
    assert operation.frame == FRAMES[-1]


def test_every_operation_is_named_by_some_published_line():
    assert {expected for expected, _ in AT_WORK} - {None} == set(OPERATIONS)


PIECES = [
    'File "',
    'a.py"',
    ", line 3",
    ", in f",
    "\n",
    "    ",
    "Traceback (most recent call last)",
    "│",
    "❱ 3 │",
    ":3 in f",
]
PIECES += ["-> 3 x", "Cell In[1], line 2", "\\n", '\\"', "[rank1]: ", OOM, "File /x.py:3, in f(x)", "\x1b[0m", "9" * 12]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_pieces_of_tracebacks_in_any_order_never_crash(pieces):
    frames = read_frames("".join(pieces))
    operation_of(frames)
    json.dumps([frame.to_dict() for frame in frames])


@settings(deadline=None)
@given(st.text(max_size=200))
def test_random_texts_never_crash(text):
    operation_of(read_frames(text))
    operation_of((Frame(file=text, line=1, function=text, code=text),))


@pytest.mark.parametrize(
    "piece",
    [
        'File "',
        'File "x", line 1, in ',
        "│ a:1 in x │\n",
        "-> 1 x\n",
        "a in b\n",
        "In [1]\n",
        "[rank0]: a\n[rank1]: b\n",
    ],
)
def test_a_hostile_text_takes_bounded_time(piece):
    text = piece * (2**21 // len(piece)) + f"\n-> 1\n{OOM}"
    begin = time.process_time()
    read_frames(text)
    assert time.process_time() - begin < 10  # measured: below 0.5 s; a quadratic search takes minutes


def test_lines_of_code_of_any_length_are_named_in_bounded_time():
    random.seed(3)
    words = [
        "attn_weights",
        "softmax(",
        "attention_mask = ",
        "logits",
        "torch.empty(",
        "einsum(",
        " q,",
        "(",
        ".",
        "dropout(",
    ]
    frame = Frame(file="x", line=1, function="f", code="".join(random.choices(words, k=500)))
    begin = time.process_time()
    operation_of((frame,) * 100)
    assert time.process_time() - begin < 10
