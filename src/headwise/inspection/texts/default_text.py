"""English prose that ships with Python: a text to look at heads with when the user brings none."""

from itertools import islice

NUM_TEXTS = 24
MIN_WORDS = 60


def default_texts() -> tuple[str, ...]:
    """Return 24 paragraphs of prose from the language reference that `pydoc` carries, in the order of its topics.

    Taken are the first whole paragraphs of at least 60 words that no other topic has brought already; white space is
    collapsed, and a word that was broken at a hyphen is whole again. What is no prose is left out: grammar, examples,
    tables, lists, headings and the descriptions under a function's name, all of which are indented or begin with a
    sign instead of a capital letter.
    """
    from pydoc_data.topics import topics

    paragraphs = (paragraph.strip("\n") for topic in topics.values() for paragraph in topic.split("\n\n"))
    prose = (_on_one_line(paragraph) for paragraph in paragraphs if _is_prose(paragraph))
    return tuple(islice(dict.fromkeys(text for text in prose if len(text.split()) >= MIN_WORDS), NUM_TEXTS))


def _is_prose(paragraph: str) -> bool:
    lines = paragraph.split("\n")
    return (
        all(line and not line[0].isspace() for line in lines)
        and paragraph[0].isupper()
        and paragraph.endswith(".")
        and "::=" not in paragraph
    )


def _on_one_line(paragraph: str) -> str:
    return " ".join(paragraph.replace("-\n", "-").split())
