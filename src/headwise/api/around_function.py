"""run_inside: a function whose body runs inside a block, be it a plain one, a generator, a coroutine or both."""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, aclosing
from typing import Any

Function = Callable[..., Any]
Block = AbstractContextManager[Any]


def run_inside(block: Block, function: Function) -> Function:
    """Return a function of the same kind and signature whose body runs inside a block, from its first line to its last.

    A call of a coroutine or generator function only makes the object whose code runs later: the block has to hold that
    code and not the call. Of a generator it stays open from the first value asked for to the end, and so also holds
    what is thrown into it.

    Args:
        block: a context manager that can be entered many times, within itself too.
        function: any function.
    """
    if inspect.isasyncgenfunction(function):
        return _async_generator(block, function)
    if inspect.iscoroutinefunction(function):
        return _coroutine(block, function)
    return _generator(block, function) if inspect.isgeneratorfunction(function) else _plain(block, function)


def _plain(block: Block, function: Function) -> Function:
    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> Any:
        with block:
            return function(*args, **keywords)

    return run


def _coroutine(block: Block, function: Function) -> Function:
    @functools.wraps(function)
    async def run(*args: Any, **keywords: Any) -> Any:
        with block:
            return await function(*args, **keywords)

    return run


def _generator(block: Block, function: Function) -> Function:
    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> Generator[Any, Any, Any]:
        with block:
            return (yield from function(*args, **keywords))

    return run


def _async_generator(block: Block, function: Function) -> Function:
    @functools.wraps(function)
    async def run(*args: Any, **keywords: Any) -> AsyncGenerator[Any, Any]:
        with block:
            async with aclosing(function(*args, **keywords)) as generator:
                step = generator.__anext__()
                while True:
                    try:
                        value = await step
                    except StopAsyncIteration:
                        return
                    try:
                        step = generator.asend((yield value))
                    except GeneratorExit:  # closed: so is the one inside
                        raise
                    except BaseException as error:
                        step = generator.athrow(error)

    return run
