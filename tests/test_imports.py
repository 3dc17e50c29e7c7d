"""What an import loads: looked at in a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

import headwise

PACKAGE = Path(headwise.__file__).parent
HEAVY = ("torch", "numpy", "transformers", "jinja2", "matplotlib")
OPTIONAL = (
    "transformers",
    "tokenizers",
    "jinja2",
    "matplotlib",
    "gguf",
    "accelerate",
    "playwright",
    "beartype",
    "sklearn",
)
TORCH_FREE = [
    "import headwise",
    "import headwise.config.presets, headwise.config.huggingface",
    "import headwise.cost.parameters, headwise.cost.flops, headwise.cost.memory, headwise.cost.kv",
    "import headwise.cost.devices, headwise.cost.planner, headwise.kernels, headwise.masks.patterns",
    "import headwise.loading.config, headwise.api.count, headwise.api.results",
    "from headwise.cli.main import main; assert main(['--help']) == 0",
    "from headwise.cli.main import main; assert main(['count', 'bert-base', '--json']) == 0",
    "from headwise.cli.main import main; assert main(['count', 'llama-3-8b', '--batch', '2', '--seq', '100']) == 0",
    "from headwise.cli.main import main; assert main(['count', 'no-such-model']) == 2",
    "import headwise.api.fit, headwise.api.oom, headwise.api.history, headwise.report.fit, headwise.report.oom",
    "from headwise.cli.main import main; assert main(['fit', 'gpt2', '--gpu', 't4', '--json']) == 0",
    "from headwise.cli.main import main; assert main(['data']) == 0",
    "from headwise.cli.main import main; assert main(['oom', 'CUDA out of memory. Tried to allocate 2.00 GiB']) == 0",
]
MODULES = [
    "headwise." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py"
]


def loaded_by(statement: str, suspects: tuple[str, ...]) -> set[str]:
    """Run a statement in a fresh interpreter and tell which of the suspect packages it loaded."""
    script = (
        f"{statement}\nimport sys\nsys.stderr.write('LOADED ' + ' '.join(m for m in {suspects} if m in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stderr.rsplit("LOADED", 1)[1].split())


@pytest.mark.parametrize("statement", TORCH_FREE)
def test_what_is_torch_free_loads_nothing_heavy(statement):
    assert loaded_by(statement, HEAVY) == set()


def test_no_module_loads_an_optional_package_when_imported():
    assert loaded_by("import " + ", ".join(MODULES), OPTIONAL) == set()


def test_the_guard_sees_a_loaded_package():
    assert loaded_by("import json", ("json", "torch")) == {"json"}
