from itertools import permutations

from headwise.cost.planning.rank import rank
from headwise.cost.planning.results import Change


def change(key, frees, extra=0.0, listed="same", applies=True):
    return Change(
        key=key,
        change=key,
        list=listed,
        applies=applies,
        frees_bytes=frees,
        peak_bytes=100 - frees if applies else None,
        extra_flops_fraction=extra,
        fits="no" if applies else None,
    )


IN_ORDER = (
    change("free of charge, much", 70),
    change("fewer FLOPs, less", 60, extra=-0.2),
    change("free of charge, little", 1),
    change("much for each FLOP", 20, extra=0.05),  # 400 for each
    change("more, at a higher price", 90, extra=0.33),  # 273 for each
    change("FLOPs are not known", 95, extra=None),
    change("nothing", 0),
    change("takes more", -5),
    change("another model, much", 99, listed="alters"),
    change("another model, at a price", 80, extra=0.1, listed="alters"),
    change("another model, nothing", 0, listed="alters"),
    change("cannot be made", 0, applies=False),
    change("cannot be made, another model", 0, listed="alters", applies=False),
)


def test_the_order_is_same_results_first_then_by_bytes_then_by_bytes_for_each_flop():
    for shift in range(len(IN_ORDER)):
        mixed = (*IN_ORDER[shift:], *IN_ORDER[:shift])
        assert rank(mixed) == IN_ORDER
        assert rank(mixed[::-1]) == IN_ORDER


def test_the_order_does_not_depend_on_that_of_the_rows():
    some = IN_ORDER[2:7]
    assert {rank(one) for one in permutations(some)} == {some}
