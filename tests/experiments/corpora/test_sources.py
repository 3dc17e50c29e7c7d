"""Files of each source are read as they are: their classes, their splits, their letters."""

import bz2
import csv

import pytest

from headwise.errors import DataError
from headwise.experiments.corpora.sources import read_folders, read_help, read_reviews, read_tables, read_tweets
from headwise.experiments.corpora.texts import SourceText

HEADINGS = "Category\tText\nd\tstring\nclass\t\n"
TWEETS = (
    "Is retweet\tTime\tAuthor\tContent\ndiscrete\ttime\tdiscrete\tstring\n\t\tclass\tmeta\n"
    'False\t1\tann\t"Said ""yes"" today https://t.co/AbC1"\n'
    "True\t2\tann\tby another\n"
    "False\t3\tbob\tno address\n"
)


def test_a_file_is_a_text_and_its_folder_the_class_whatever_its_letters():
    files = {"p/data/fish/2.txt": "£5 café".encode("latin-1"), "p/data/birds/1.txt": "£5 café".encode()}
    assert read_folders(files) == [
        SourceText(text="£5 café", label="birds"),
        SourceText(text="£5 café", label="fish"),
    ]


def test_tables_have_three_headings_and_say_which_split_they_are():
    files = {
        "d/x-train.tab": f"{HEADINGS}\t\n\nearn\tfirst\nacq\tsecond\n".encode(),
        "d/x-test.tab": f"{HEADINGS}\nearn\tthird\n".encode(),
    }
    assert read_tables(files) == [
        SourceText(text="third", label="earn", split="test"),
        SourceText(text="first", label="earn", split="train"),
        SourceText(text="second", label="acq", split="train"),
    ]


def test_a_text_longer_than_csv_takes_by_itself_is_read_and_the_limit_put_back():
    before = csv.field_size_limit()
    long = "word " * 40_000
    found = read_tables({"d/x-test.tab": f"{HEADINGS}earn\t{long}\n".encode()})
    assert found[0].text == long and len(long) > before
    assert csv.field_size_limit() == before


def test_reviews_come_with_their_film_and_without_summaries():
    table = (
        'category,text,movie_name,more\nplot,"A, B",film_1,True\nfresh,"Good,\nvery",film_1,True\nrotten,Bad,film_2,\n'
    )
    assert read_reviews({"d/reviews.csv.bz2": bz2.compress(table.encode())}) == [
        SourceText(text="Good,\nvery", label="fresh", group="film_1"),
        SourceText(text="Bad", label="rotten", group="film_2"),
    ]


def test_tweets_come_without_retweets_and_addresses():
    assert read_tweets({"d/t.tab": TWEETS.encode()}) == [
        SourceText(text='Said "yes" today', label="ann"),
        SourceText(text="no address", label="bob"),
    ]


@pytest.mark.parametrize(
    ("read", "content", "text"),
    [
        (read_reviews, b"no bzip2", "'d/f.tab' must be a bzip2 file"),
        (read_reviews, bz2.compress(b"category,text\nfresh,Good\n"), "must have a column 'movie_name'"),
        (read_tables, b"Label\tText\n", "must have a column 'Category'"),
        (read_tables, b"Category\tText\nearn\t\xff\n", "must be a table in UTF-8"),
        (read_tweets, b"", "must have a column 'Is retweet'"),
    ],
)
def test_a_file_of_another_shape_is_one_clear_error(read, content, text):
    with pytest.raises(DataError, match=text):
        read({"d/f.tab": content})


def test_help_texts_are_those_of_this_python(monkeypatch):
    from pydoc_data import topics

    assert sorted(text.text for text in read_help()) == sorted(topics.topics.values())
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="came without pydoc_data"):
        read_help()
