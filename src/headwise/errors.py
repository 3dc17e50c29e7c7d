"""The few exceptions that headwise raises on purpose, all of them `ValueError`s of the caller.

HeadwiseError
├── ConfigError       a model description that is malformed, contradictory or unknown
│   └── UnknownArchitectureError  well-formed as far as it was read, but of a family or class without a closed form
├── ModelError        a MODEL that cannot be found, read or run
├── TextError         a text that cannot be read or holds nothing to look at
├── DataError         a corpus that is not on this machine, cannot be fetched, or is not what was recorded of it
├── OutputError       a result that cannot be written where it was asked for
├── TrainingError     a training whose gradients are no longer finite
├── UnsupportedError  an implementation asked for what it cannot do; the text names one that can
└── MissingExtraError a package is not installed; the text is the pip line that brings it

The command line prints the text of any of them on one line and exits with 2.
"""


class HeadwiseError(ValueError):
    """A request that headwise cannot fulfil: what must hold, what came, what to do."""


class ConfigError(HeadwiseError):
    """A model description is malformed, contradictory or of an unknown kind."""


class UnknownArchitectureError(ConfigError):
    """A model description is of a family or class that has no closed form; a module of it can still be traced."""


class ModelError(HeadwiseError):
    """A MODEL cannot be found, read or run."""


class TextError(HeadwiseError):
    """A text cannot be read, or holds nothing to look at."""


class DataError(HeadwiseError):
    """A corpus is not on this machine, cannot be fetched, or is not what was recorded of it."""


class OutputError(HeadwiseError):
    """A result cannot be written where it was asked for."""


class TrainingError(HeadwiseError):
    """A training went astray: its gradients are no longer finite."""


class UnsupportedError(HeadwiseError):
    """An implementation was asked for what it cannot do."""


class MissingExtraError(HeadwiseError, ImportError):
    """A package that an extra brings is not installed."""

    def __init__(self, package: str, extra: str):
        super().__init__(f'{package} is not installed; it comes with: pip install "headwise[{extra}]"')
        self.package = package
        self.extra = extra


def describe(error: BaseException, *, limit: int = 300) -> str:
    """Write an exception on one line: its type and the first line of its text, and the next after a colon."""
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:  # an exception of a user's, whose own text fails
        lines = []
    text = " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""
    return f"{type(error).__name__}: {text}"[:limit] if text else type(error).__name__
