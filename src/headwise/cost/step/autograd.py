"""play_backward: the way back on a tape, as torch's autograd engine goes it.

Newest operation first; what an operation kept is dropped as soon as it is done; gradients of a tensor with several
readers are summed, in place where nothing else holds the first one.
"""

import heapq

from headwise.cost.step.tape import Edge, Node, Storage, Tape, Value

Flows = dict[Node, dict[int, Storage]]


def play_backward(tape: Tape, loss: Value, *, accumulates: bool = False) -> None:
    """Play backward from a loss of one number; leaves the gradients of parameters alive, in `tape.gradients`.

    Args:
        tape: of the forward pass.
        loss: its result.
        accumulates: gradients of earlier passes are there, from before the forward pass on; new ones are added to them
            in place.
    """
    assert loss.node is not None, "the loss depends on a parameter"
    waiting = _count_readers(loss.node)
    if accumulates:
        tape.hold_earlier_gradients([node for node in waiting if not node.edges and node.dtype])
    tape.first_backward_tick = tape.tick
    flows: Flows = {}
    passing: list[Storage] = []  # gradients of leaves that are no parameters go with the graph
    first = tape.new("gradient of the loss", (), loss.dtype, is_expanded=True)
    _add(tape, flows, Edge(loss.node, 0, (), loss.dtype, True, "same"), first)
    del first
    ready = [(-loss.node.number, loss.node)]
    while ready:
        _, node = heapq.heappop(ready)
        label = f"backward: {node.stretch.removeprefix('forward: ')}"
        if label != tape.stretches[-1].label:
            tape.begin(label)
        tape.owner = node.owner
        outgoing = _run(tape, node, flows.pop(node))
        while outgoing:
            edge, storage = outgoing.pop(0)
            _add(tape, flows, edge, storage)
            del storage
            waiting[edge.node] -= 1
            if waiting[edge.node] == 0 and edge.node.edges:
                heapq.heappush(ready, (-edge.node.number, edge.node))
            elif waiting[edge.node] == 0:
                gradient = flows.pop(edge.node)[0]
                if not edge.node.dtype:
                    passing.append(gradient)
                else:
                    tape.keep_gradient(edge.node, gradient)
                del gradient


def _run(tape: Tape, node: Node, flows: dict[int, Storage]) -> list[tuple[Edge, Storage]]:
    """Run one operation backward: make its gradients, then drop what it kept and the gradients that came."""
    if node.frame is not None:
        node.frame.recompute()
    for flow in flows.values():
        flow.num_buffers -= 1  # one that is passed on is counted again where it arrives
    gradient = next(iter(flows.values()))
    dtype = gradient.record.dtype
    scratch = [tape.new(f"workspace of {node.name} backward", shape, dtype) for shape in node.scratch]
    if node.workspace_bytes:
        scratch.append(tape.new(f"workspace of the kernel of {node.name} backward", (node.workspace_bytes,), "uint8"))
    if node.needs_dense and (gradient.is_expanded or gradient.layout == "places"):
        scratch.append(tape.new(f"gradient of {node.name}, made dense", node.shape, dtype))
    is_copied = gradient.layout in node.copied_layouts
    outgoing: list[tuple[Edge, Storage]] = []
    for edge in node.edges:
        if edge.is_passed and not is_copied:
            gradient.is_view |= node.is_view
            outgoing.append((edge, gradient))
        else:
            layout = gradient.layout if edge.layout in ("same", "view") else edge.layout
            layout = "tokens" if is_copied else layout
            made = tape.new(f"gradient of {edge.node.name}", edge.shape, edge.dtype, layout=layout)
            made.is_view = edge.layout in ("view", "turned")
            outgoing.append((edge, made))
            del made
    node.kept = ()
    node.frame = None
    return outgoing


def _add(tape: Tape, flows: Flows, edge: Edge, storage: Storage) -> None:
    """Bring a gradient to its node; a second one is added in place if nothing else holds or shows the first one.

    Nothing is added to one number that is spread out, as a sum sends it back.
    """
    slots = flows.setdefault(edge.node, {})
    before = slots.get(edge.slot)
    if before is not None and before.num_buffers == 1 and not before.is_view and not before.is_expanded:
        return
    if before is not None:
        before.num_buffers -= 1
        storage = tape.new(f"sum of gradients of {edge.node.name}", edge.shape, edge.dtype, layout=before.layout)
    storage.num_buffers += 1
    slots[edge.slot] = storage


def _count_readers(root: Node) -> dict[Node, int]:
    readers: dict[Node, int] = {root: 0}
    todo = [root]
    while todo:
        for edge in todo.pop().edges:
            if edge.node not in readers:
                readers[edge.node] = 0
                todo.append(edge.node)
            readers[edge.node] += 1
    return readers
