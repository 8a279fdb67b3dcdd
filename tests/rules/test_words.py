"""Pages use the field's words: those that readers search for are there, and some of our own have a plainer one."""

import re

import pytest
from pages import CHINESE, FENCE, PAGES, name

MANUAL = [page for page in PAGES if not page.name.endswith(CHINESE) and page.name != "CHANGELOG.md"]
# Results and decisions are records of their time.
GUIDES = [page for page in MANUAL if page.parent.name not in ("results", "decisions")]
SEARCHED = ("multi-agent", "mixed precision", "bf16", "early stopping", "gradient accumulation", "FSDP", "action mask")
SEARCHED += ("asymmetric actor-critic", "deterministic", "reproducible", "update-to-data", "VecNormalize", "callback")
SEARCHED += (
    "EvalCallback",
    "troubleshooting",
    "DistributedDataParallel",
    "RecurrentPPO",
    "virtual rank",
    "uint8 image",
)
PLAINER = {
    r"\banew\b": "again",
    r"\bin the place of\b": "instead of",
    r"\bgo(es)? on\b": "continue, resume",
    r"\bway out\b": "a suggested fix",
    r"\bof bytes, (0|an)|(images?|pictures?|array) of bytes": "uint8",
    r"\b(is|are) made as\b": "is constructed as",
    r"\bstands? under\b": "is under",
    r"\bcut on 2 ranks|\bplanted bug|\bseams? (between|and its)": "shared quantity, mutation",
    r"Python's global lock": "the GIL",
    r"\bOne iteration\b|\bper iteration\b": "update",
    r"\b(episode|task|video)s? (is|are|cannot be) drawn": "rendered",
}


@pytest.mark.parametrize("word", SEARCHED)
def test_a_word_that_readers_search_for_is_there(word):
    pages = [page for page in MANUAL if page.name != "api.md"]
    assert any(word.lower() in re.sub(r"\s+", " ", page.read_text().lower()) for page in pages)


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_pages_use_the_plainer_word(page):
    text = re.sub(r"`[^`]*`", "", FENCE.sub("", page.read_text()))
    text = re.sub(r"\s+", " ", text)
    found = {instead: re.search(words, text)[0] for words, instead in PLAINER.items() if re.search(words, text)}
    assert found == {}, "use the word on the left"
