import pytest

from headwise.cost.workload import Workload
from headwise.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch": 0}, "batch must be between 1 and .*; got 0"),
        ({"seq": 1.5}, "seq must be a whole number; got 1.5"),
        ({"batch": True}, "batch must be a whole number; got True"),
        ({"batch": 2**21, "seq": 2**20}, "batch x seq must be at most 2\\^40 tokens; got 2097152 x 1048576"),
        ({"phase": "rest"}, 'phase must be "train" or "prefill" or "decode"; got \'rest\''),
        ({"precision": 32}, 'precision must be "fp32" or "bf16" or "fp16" or "amp-bf16" or "amp-fp16"; got 32'),
        ({"optimizer": "adagrad"}, "optimizer must be .*adamw.* or .*; got 'adagrad'"),
        ({"accumulation": 0}, "accumulation must be between 1 and .*; got 0"),
        ({"lora": 8}, "lora must be of type Lora; got 8"),
        ({"attention": "flash"}, 'attention must be "sdpa" or "eager"; got \'flash\''),
        ({"device": "tpu"}, 'device must be "cpu" or "cuda"; got \'tpu\''),
        ({"compute_capability": "80"}, "compute_capability must be a pair of whole numbers, .*; got '80'"),
        ({"compute_capability": None}, "compute_capability must be a pair of whole numbers, .*; got None"),
        ({"compute_capability": (8,)}, r"compute_capability must be a pair of whole numbers, .*; got \(8,\)"),
        ({"compute_capability": (8, 0.5)}, "a number of compute_capability must be a whole number; got 0.5"),
        ({"compute_capability": (8, -1)}, "a number of compute_capability must be between 0 and .*; got -1"),
        ({"dropout": 0.1}, "dropout must be True or False; got 0.1"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        Workload(**{"batch": 1, "seq": 2, **changes})
