"""How many costs each tool gets right: `python -m benchmarks.cost [--json] [--tool NAME ...]`.

FLOPs of attention written in eleven ways and four modes, numbers from public bug reports, parameters, the peak of a
real training step, and key/value caches: the same questions go to headwise and to the tools that `pip install
"headwise[benchmarks]"` brings. Every tool runs in a process of its own, and every question in a fresh copy of that
process, so that a tool that breaks, or replaces torch's functions for good, spoils no other answer. An answer is right
within 1 part in 1000; beside it stands how many are within 1 %.

The truth of a step is a measured one, so the row asks whether the config alone tells it. DeepSpeed's profiler is not
among the tools.
"""

import argparse
import contextlib
import importlib
import json
import logging
import multiprocessing
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.cost_rows import MODES, WAYS, Question, questions
from benchmarks.cost_tools import TOOLS, Answer, hushed, package_version

from headwise.cost.running.measure import measure_training_step
from headwise.errors import describe

TOLERANCE = 1e-3
CLOSE = 1e-2  # what counts softmax and biases too is no further off
QUESTION_SECONDS = 120
TOOL_SECONDS = 900
PRELOADED = (
    "torch._dynamo",
    "transformers.models.auto.modeling_auto",
    "headwise.cost.running.flop_counter",
    "headwise.cost.kv",
)
KINDS = ("flops", "parameters", "step bytes", "cache bytes")


def truth_of(question: Question) -> int:
    """Return the right answer, by running a step where there is no formula for it."""
    if question.truth is not None:
        return question.truth
    module, batch, seq = question.make()
    inputs = {"input_ids": torch.zeros(batch, seq, dtype=torch.int64)}
    return measure_training_step(module, inputs).peak_bytes


def in_a_copy(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fork of this process, and return what it returns, or how it ended."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(function(*arguments)))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(QUESTION_SECONDS) else f"no answer in {QUESTION_SECONDS} s"
    except EOFError:
        return "the process died"
    finally:
        process.kill()
        process.join()


def ask(tool: str, *, quick: bool = False) -> dict[str, Any]:
    """Ask one tool all that it answers: answers by question, or what it raised instead."""
    for name in (TOOLS[tool][0], *PRELOADED):  # once, before the copies are made
        with contextlib.suppress(ImportError), hushed():
            importlib.import_module(name)
    answers: dict[str, Any] = {}
    for question in questions(quick=quick):
        answer = TOOLS[tool][1].get(question.kind)
        if answer is not None:
            found = in_a_copy(ask_once, answer, question)
            if found is not None:
                answers[question.name] = found
    return answers


def ask_once(answer: Answer, question: Question) -> int | float | str | None:
    """Put one question to one tool."""
    try:
        asked = question.make()
        if question.kind == "flops":
            asked[0].train(question.mode == "train")
        with hushed(), MODES[question.mode]():
            return answer(asked)
    except (Exception, SystemExit) as error:
        return describe(error, limit=120)


def run_apart(tool: str, *, quick: bool) -> dict[str, Any]:
    """Ask a tool in a process of its own."""
    installed = package_version(TOOLS[tool][0])
    if installed is None:
        return {"version": None, "status": "absent", "answers": {}}
    command = [sys.executable, "-m", "benchmarks.cost", "--ask", tool, *(["--quick"] if quick else [])]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"version": installed, "status": f"took more than {TOOL_SECONDS} s", "answers": {}}
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no word"])[-1]
        return {"version": installed, "status": f"exit {run.returncode}: {last[:120]}", "answers": {}}
    return {"version": installed, "status": "ok", "answers": json.loads(run.stdout.splitlines()[-1])}


def is_right(answer: Any, truth: int, tolerance: float = TOLERANCE) -> bool:
    """Tell whether an answer is a number within a share of the truth."""
    return isinstance(answer, int | float) and abs(answer - truth) <= tolerance * truth


def summarise(result: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Count, for each kind that the tool answers, the rows, those that are right, and those within 1 %."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        if row["question"] in result["answers"]:
            counts = found.setdefault(row["kind"], {"right": 0, "close": 0, "rows": 0})
            counts["rows"] += 1
            counts["right"] += is_right(result["answers"][row["question"]], row["truth"])
            counts["close"] += is_right(result["answers"][row["question"]], row["truth"], CLOSE)
    return found


def count_ways(result: dict[str, Any], rows: list[dict[str, Any]]) -> int:
    """Count the ways of writing attention that are right in every mode."""
    truths = {row["question"]: row["truth"] for row in rows}

    def is_right_in_every_mode(way: str) -> bool:
        names = [f"{way}, {mode}" for mode in MODES]
        return all(is_right(result["answers"].get(name), truths[name]) for name in names if name in truths)

    return sum(is_right_in_every_mode(way) for way in WAYS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="only this tool; may be given several times")
    parser.add_argument("--quick", action="store_true", help="one mode, and no large input")
    parser.add_argument("--ask", choices=TOOLS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if options.ask:
        print(json.dumps(ask(options.ask, quick=options.quick)))
        return
    rows = [{"question": one.name, "kind": one.kind, "truth": truth_of(one)} for one in questions(quick=options.quick)]
    results = {tool: run_apart(tool, quick=options.quick) for tool in options.tool or TOOLS}
    for tool in results.values():
        tool["right"] = summarise(tool, rows)
        tool["ways"] = count_ways(tool, rows)
    machine = {"python": platform.python_version(), "torch": torch.__version__}
    machine["transformers"] = package_version("transformers") or "absent"
    if options.json:
        print(json.dumps({"machine": machine, "tolerance": TOLERANCE, "close": CLOSE, "rows": rows, "tools": results}))
        return
    print_tables(machine, rows, results)


def print_tables(machine: dict[str, str], rows: list[dict[str, Any]], results: dict[str, dict[str, Any]]) -> None:
    print(machine)
    header = f"{f'ways of {len(WAYS)}':>14}" + "".join(f"{kind:>16}" for kind in KINDS)
    print(f"\n{'right answers':<28}{'version':<20}{header}")
    for tool, result in results.items():
        ways = result["ways"] if "flops" in result["right"] else "-"
        cells = (result["right"].get(kind) for kind in KINDS)
        shown = "".join(f"{'{right} ({close}) of {rows}'.format(**cell) if cell else '-':>16}" for cell in cells)
        status = "" if result["status"] == "ok" else f"  {result['status']}"
        print(f"{tool:<28}{result['version'] or '':<20}{ways:>14}{shown}{status}")
    print("\nanswer / truth (1.000 is right; -: does not answer; !: raised)\n")
    print(" " * 52 + "".join(f"{tool[:12]:>14}" for tool in results))
    for row in rows:
        cells = (result["answers"].get(row["question"]) for result in results.values())
        print(f"{row['question'][:50]:<52}" + "".join(f"{ratio(cell, row['truth']):>14}" for cell in cells))


def ratio(answer: Any, truth: int) -> str:
    if answer is None:
        return "-"
    return f"{answer / truth:.3f}" if isinstance(answer, int | float) else "!"


if __name__ == "__main__":
    main()
