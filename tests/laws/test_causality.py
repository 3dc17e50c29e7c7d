from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import equal

from headwise.masks.patterns import Causal, SlidingWindow
from headwise.ops.attention import attention

fixtures_stay = settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(length=st.sampled_from([2, 63, 127]), window_size=st.sampled_from([None, 1, 5, 200]), data=st.data())
@fixtures_stay
def test_a_future_token_never_changes_a_past_output(impl, dtype, make_inputs, length, window_size, data):
    now = data.draw(st.integers(0, length - 2))
    mask = Causal() if window_size is None else Causal() & SlidingWindow(window_size)
    query, key, value = make_inputs(length, length, dtype, batch=1, num_heads=2, num_kv_heads=1)
    before = attention(query, key, value, mask=mask, impl=impl).output
    for tensor, change in ((query, -2.0), (key, 3.0), (value, 1e3)):
        tensor[:, :, now + 1 :] = change
    after = attention(query, key, value, mask=mask, impl=impl).output
    assert equal(after[:, :, : now + 1], before[:, :, : now + 1])
    assert not equal(after, before)
