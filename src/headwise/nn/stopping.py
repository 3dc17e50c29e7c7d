"""Stopping: when a row of generated tokens ends."""

from collections.abc import Callable, Collection

from torch import Tensor

from headwise.config.checks import shown
from headwise.errors import ConfigError


class Stopping:
    """Ends a row at a token, at a string, or at a number of tokens.

    Args:
        max_new_tokens: how many a row gets at most.
        stop_tokens: a row ends with any of them.
        stop_strings: a row ends with the token that completes any of them.
        decode: what makes a text of tokens, for strings.

    Raises:
        ConfigError: tokens that are no whole numbers; strings without `decode`, or an empty one.
    """

    def __init__(
        self,
        max_new_tokens: int,
        stop_tokens: Collection[int] | Tensor,
        stop_strings: Collection[str],
        decode: Callable[[list[int]], str] | None,
    ):
        stop_tokens = stop_tokens.tolist() if isinstance(stop_tokens, Tensor) else stop_tokens
        if not isinstance(stop_tokens, Collection) or not all(type(token) is int for token in stop_tokens):
            raise ConfigError(f"stop_tokens must be whole numbers; got {shown(stop_tokens)}")
        if isinstance(stop_strings, str) or not isinstance(stop_strings, Collection):
            raise ConfigError(f"stop_strings must be a list of strings; got {shown(stop_strings)}")
        if stop_strings and not callable(decode):
            raise ConfigError(f"stop_strings need decode, which makes a text of tokens; got {shown(decode)}")
        if not all(isinstance(one, str) and one for one in stop_strings):
            raise ConfigError(f"stop_strings must be strings that hold something; got {list(stop_strings)!r}")
        self.max_new_tokens = max_new_tokens
        self._tokens, self._strings, self._decode = frozenset(stop_tokens), tuple(stop_strings), decode

    def cut(self, before: list[int], tokens: list[int]) -> tuple[list[int], bool]:
        """Return those of a row's next tokens that it still takes, and whether it ends with them.

        Args:
            before: the new tokens that the row has.
            tokens: those that follow.
        """
        taken: list[int] = []
        for token in tokens:
            taken.append(token)
            now = before + taken
            if token in self._tokens or len(now) == self.max_new_tokens or self._ends_with_string(now):
                return taken, True
        return taken, False

    def _ends_with_string(self, tokens: list[int]) -> bool:
        if self._decode is None or not self._strings:
            return False
        text = self._decode(tokens)
        if not isinstance(text, str):
            raise ConfigError(f"decode must make a string of tokens; got {shown(text)}")
        return any(one in text for one in self._strings)
