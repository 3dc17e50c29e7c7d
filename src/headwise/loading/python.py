"""find_object: what `package.module:name` or `file.py:name` stands for; torch is imported only if that module does."""

import importlib
import sys
from pathlib import Path
from typing import Any

from headwise.errors import ModelError, describe


def find_object(target: str) -> Any:
    """Import a module, or a file of one, with the current folder on the path, and return what it has by a name.

    Args:
        target: "package.module:name" or "folder/file.py:name"; the name may have dots.

    Raises:
        ModelError: there is no such module or name, or importing it fails.
    """
    module_name, _, attribute = target.partition(":")
    file = Path(module_name)
    is_file = file.suffix == ".py" and file.is_file()
    folder = str(file.resolve().parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if is_file:
        module_name = file.stem
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelError(f"{target}: there is no module {error.name!r} on the path or in the current folder") from None
    except (Exception, SystemExit) as error:
        raise ModelError(f"{target}: importing {module_name} raised {describe(error)}") from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ModelError(f"{target}: {module_name} has no {attribute!r}")
        value = getattr(value, part)
    return value
