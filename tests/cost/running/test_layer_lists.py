"""Lists of layers in modules that are written out here."""

from torch import nn

from headwise.cost.running.layer_lists import find_lists, named_parts


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)) for _ in range(3)])
        self.head = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
        self.mlp = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
        self.again = self.layers[2]
        self.nothing = None
        self.shared = nn.ModuleList(2 * [nn.Tanh()])
        self.empty = nn.ModuleList()


def test_outermost_lists_of_one_class_are_found_with_what_stands_in_them_twice():
    net = Net()
    assert find_lists(net) == {
        "layers": list(net.layers),
        "mlp": list(net.mlp),
        "shared": list(net.shared),
    }
    assert len(find_lists(net)["shared"]) == 2


def test_only_lists_of_the_kinds_that_are_asked_for_are_found():
    assert list(find_lists(Net(), (nn.ModuleList,))) == ["layers", "shared"]
    assert list(find_lists(Net().layers[0], (nn.Sequential,))) == []


def test_parts_are_named_as_torch_names_them():
    net = Net()
    assert list(named_parts(net)) == list(net.named_modules())
