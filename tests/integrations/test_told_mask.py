import pytest
import torch
import transformers

from headwise.errors import UnsupportedError
from headwise.integrations.told_mask import ToldMask, told_by
from headwise.integrations.transformers_backend import attend
from headwise.integrations.transformers_masks import tell_mask
from headwise.masks.patterns import Causal


def test_a_row_that_was_written_to_counts_itself():
    row = tell_mask(1, 1, 7, q_offset=torch.tensor(3), allow_is_causal_skip=False)
    assert type(row) is torch.Tensor and told_by(row).mask == Causal()
    row[..., 2] = False
    assert told_by(row) is None
    with torch.inference_mode():
        assert told_by(tell_mask(1, 1, 7, q_offset=torch.tensor(3), allow_is_causal_skip=False)) is None


ADDED = {
    "sum": lambda scores, mask: scores + mask,
    "sum, mask first": lambda scores, mask: mask + scores,
    "in place": lambda scores, mask: scores.add_(mask),
    "function": torch.add,
    "a number": lambda scores, mask: mask + 1.0,
}


@pytest.mark.parametrize("name", ADDED)
def test_a_mask_that_is_added_to_scores_is_refused(name):
    own = type("OfSomeoneConfig", (transformers.PreTrainedConfig,), {})
    told = tell_mask(2, 7, 7, config=own())
    with pytest.raises(UnsupportedError, match="got the model of a OfSomeoneConfig, which computes attention"):
        ADDED[name](torch.zeros(2, 5, 7, 7), told)


def test_what_bools_can_do_a_told_mask_can():
    told, table = tell_mask(2, 7, 7), torch.ones(7, 7, dtype=torch.bool).tril()
    scores = torch.zeros(2, 5, 7, 7)
    assert torch.equal(torch.where(told, scores, -1.0), torch.where(table, scores, -1.0))
    assert torch.equal(scores.masked_fill(~told, -1.0), scores.masked_fill(~table, -1.0))
    assert torch.equal(told + torch.ones_like(told), torch.ones(2, 1, 7, 7, dtype=torch.bool))
    assert torch.equal(told.float() * scores, table.float() * scores)


def test_a_mask_that_is_only_handed_on_stays_told():
    plain = tell_mask(2, 7, 7)
    padded = tell_mask(2, 7, 7, attention_mask=torch.arange(7) > torch.tensor([[2], [0]]))
    for told in (plain, padded):
        detached = told.detach()
        detached.requires_grad = False
        assert not torch.is_floating_point(told) and not told.is_contiguous()
        assert told.stride()[2:] == (0, 0) and told.storage_offset() == 0
        for same in (detached, told.contiguous(), told.to("cpu"), told.to(torch.bool)):
            assert same is told and told_by(same) is not None
    moved = plain.to("meta")
    assert told_by(moved) == told_by(plain) and moved.device.type == "meta" and moved.shape == plain.shape
    assert not isinstance(padded.to("meta"), ToldMask)  # its mask holds a tensor, which stays
    numbers = plain.to(torch.float32)
    assert numbers.dtype == torch.float32 and torch.equal(numbers, torch.ones(7, 7).tril().expand(2, 1, 7, 7))


def test_what_a_model_writes_into_its_mask_counts():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 5, 7, 4).unbind()
    told = tell_mask(2, 7, 7, allow_is_causal_skip=False)
    assert isinstance(told, ToldMask) and told.contiguous() is told
    table = torch.ones(7, 7, dtype=torch.bool).tril()
    before, _ = attend(torch.nn.Identity(), query, key, value, told)
    told[..., 5, 3] = False
    table[5, 3] = False
    after, _ = attend(torch.nn.Identity(), query, key, value, told)
    expected, _ = attend(torch.nn.Identity(), query, key, value, table[None, None])
    assert torch.equal(after, expected)
    assert not torch.equal(after, before)
