from argparse import Namespace

from benchmarks.monitor import bert, measure


def test_a_case_is_counted_and_timed():
    row = measure(("bert-base", bert, 1, 13), 1, Namespace(device="cpu", repeats=1))
    # 13 drawn queries x 13 keys x 768 numbers, one multiply-add being 2
    assert row["added_flops"] == 2 * 13 * 13 * 768
    assert 0 < row["added_bytes"] < row["written_bytes"]
    assert set(row["seconds"]) == {"plain", "sampled"}
