from headwise.inspection.texts.default_text import MIN_WORDS, NUM_TEXTS, default_texts


def test_default_texts_are_distinct_whole_paragraphs_of_prose():
    texts = default_texts()
    assert len(texts) == len(set(texts)) == NUM_TEXTS
    for text in texts:
        assert len(text.split()) >= MIN_WORDS
        assert text == " ".join(text.split())
        assert text[0].isupper()
        assert text.endswith(".")
        assert not any(sign in text for sign in ("::=", ">>>", "+--", "==="))


def test_default_texts_are_the_same_every_time():
    assert default_texts() == default_texts()


def test_a_word_broken_at_a_hyphen_is_whole_again():
    assert not any("non- negative" in text for text in default_texts())
    assert any("non-negative" in text for text in default_texts())
