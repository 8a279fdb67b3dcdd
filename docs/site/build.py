"""Build the static site from the pages of this repository, in English and Chinese.

    .venv-docs/bin/python docs/site/build.py          # writes site/, and site/zh/

The pages are copied to a folder as they lie in the repository, one folder per language. A Chinese page takes the name
of its English twin; where there is none, the English page is shown with a note. A linked file of source code becomes
a page of its own. Everything that mkdocs warns about fails the build, and so does a link of the built pages that leads
nowhere, or a resource that would be requested from another host.
"""

import logging
import re
import shutil
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import mkdocs.commands.build
import mkdocs.config
import yaml
from built_pages import problems

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SITE = ROOT / "site"
CHINESE = ".zh-CN.md"
FENCED = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)
TWIN_LINE = re.compile(r"^\[(中文|English)\]\(\S+\)\n+", re.MULTILINE)
LARGEST_SOURCE = 100_000
"""Bytes; larger files are linked as they are."""
LANGUAGES = {".py": "python", ".c": "c", ".json": "json", ".jsonl": "json", ".yaml": "yaml", ".sh": "bash"}
CHINESE_NAMES = {
    "Home": "首页",
    "Start": "入门",
    "Tour": "示例",
    "Runs": "运行",
    "Coming from": "迁移",
    "Algorithms": "算法",
    "Launchers": "启动器",
    "Results": "结果",
    "API": "API",
    "Design": "设计",
    "Decisions": "决策记录",
}
OTHER = {
    "en": {"lang": "zh", "name": "中文", "link": "zh"},
    "zh": {"lang": "en", "name": "English", "link": ".."},
}
"""The other language of each site, and the path from one site to the other."""
NOT_TRANSLATED = '!!! note ""\n    本页只有英文版。\n\n'


def main() -> int:
    """Build both languages; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    logging.getLogger("jieba").setLevel(logging.WARNING)
    shutil.rmtree(SITE, ignore_errors=True)
    for language, site in (("en", SITE), ("zh", SITE / "zh")):
        staged = ROOT / "build" / "site" / language
        shutil.rmtree(staged, ignore_errors=True)
        stage(staged, language)
        mkdocs.commands.build.build(config(staged, site, language))
    (SITE / "zh" / "404.html").unlink()  # a server has one such page
    found = problems(SITE)
    print("\n".join(found) or f"built {len(list(SITE.rglob('*.html')))} pages, every link leads somewhere: {SITE}")
    return int(bool(found))


def pages() -> Iterator[Path]:
    """The English pages of the site, relative to the repository."""
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]):
        if not path.name.endswith(CHINESE):
            yield path.relative_to(ROOT)


def stage(folder: Path, language: str) -> None:
    """Copy all pages, and what they link to, into a folder."""
    linked: set[Path] = set()
    for page in pages():
        twin = ROOT / page.with_name(page.stem + CHINESE)
        translated = language == "zh" and twin.exists()
        text = TWIN_LINE.sub("", (twin if translated else ROOT / page).read_text(), count=1)
        if translated:
            text = with_english_anchors(text, (ROOT / page).read_text())
        note = NOT_TRANSLATED if language == "zh" and not translated else ""
        front = "---\nhide: [navigation]\n---\n\n" if page == Path("README.md") else ""
        write(folder / page, front + with_note(staged_text(text, page, linked), note))
    for path in sorted(linked):
        stage_source(folder, path)
    shutil.copy(HERE / "site.css", folder)


def with_note(text: str, note: str) -> str:
    """The text with a note below its first heading."""
    title, newline, rest = text.partition("\n")
    return f"{title}{newline}\n{note}{rest.lstrip()}" if note else text


def with_english_anchors(text: str, english: str) -> str:
    """A translated page whose headings can also be reached by the anchors of its English twin."""
    names = iter(anchor(title, "-") for title in HEADING.findall(FENCED.sub("", english)))

    def heading(found: re.Match[str]) -> str:
        name = next(names, None)
        return f'{found[0]} <a id="{name}"></a>' if name else found[0]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else HEADING.sub(heading, part) for part in parts)


def staged_text(text: str, page: Path, linked: set[Path]) -> str:
    """A page with links to pages of the site; adds the other files that it links to."""

    def link(found: re.Match[str]) -> str:
        target, mark, fragment = found[0].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        path = (ROOT / page.parent / target).resolve().relative_to(ROOT)
        if target.endswith(".md"):
            return target.removesuffix(CHINESE).removesuffix(".md") + ".md" + mark + fragment
        linked.add(path)
        if (ROOT / path).is_dir():
            return f"{target.rstrip('/')}/README.md"
        return f"{target}.md{mark}{fragment}" if is_source(ROOT / path) else found[0]

    parts: list[str] = []
    end = 0
    for fence in FENCED.finditer(text):
        parts += [LINK.sub(link, text[end : fence.start()]), with_title(fence[0])]
        end = fence.end()
    return "".join([*parts, LINK.sub(link, text[end:])])


def with_title(block: str) -> str:
    """A fenced block whose second word, the name of a file or a host, is shown as its title."""
    return re.sub(r"^(```+)(\w+) (\S+)$", r'\1\2 title="\3"', block, count=1, flags=re.MULTILINE)


def is_source(path: Path) -> bool:
    """Whether a file is shown as a page of source code."""
    return path.suffix in LANGUAGES and path.stat().st_size < LARGEST_SOURCE


def stage_source(folder: Path, path: Path) -> None:
    """A page that shows a file of source code or lists a folder; other files are copied."""
    source, front = ROOT / path, "---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n"
    if source.is_dir():
        index = folder / path / "README.md"
        if not index.exists():
            names = sorted(one for one in source.iterdir() if not one.name.startswith((".", "__pycache__")))
            write(index, front + f"# {path}\n\n" + "".join(listed(folder, path, one) for one in names))
    elif is_source(source):
        body = f"`````{LANGUAGES[source.suffix]}\n{source.read_text()}\n`````\n"
        write(folder / f"{path}.md", front + f"# {path}\n\n{body}")
    else:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / path)


def listed(folder: Path, path: Path, one: Path) -> str:
    """A line of a folder's list, linked if the site has the page."""
    if one.name.endswith(CHINESE):
        return ""
    if one.suffix == ".md":
        title = (folder / path / one.name).read_text().partition("\n")[0].lstrip("# ")
        return f"- [{title}]({one.name})\n"
    return f"- `{one.name}{'/' if one.is_dir() else ''}`\n"


def write(path: Path, text: str) -> None:
    """Write a file, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def anchor(heading: str, separator: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def config(staged: Path, site: Path, language: str) -> Any:
    """The configuration of mkdocs for one language."""
    settings: dict[str, Any] = yaml.safe_load((HERE / "mkdocs.yml").read_text())
    settings |= {"docs_dir": str(staged), "site_dir": str(site), "strict": True}
    settings["theme"] |= {"language": language, "custom_dir": str(HERE / "theme")}
    settings["plugins"] = [{"search": {"lang": ["en", "zh"] if language == "zh" else "en"}}]
    for extension in settings["markdown_extensions"]:
        if isinstance(extension, dict) and "toc" in extension:
            extension["toc"]["slugify"] = anchor
    settings["nav"] = expanded(settings["nav"], staged, language)
    settings["extra"]["alternate"] = [OTHER[language]]
    written = staged.with_suffix(".yml")  # mkdocs wants a file; its content is given
    written.write_text("site_name: Lockstep\n")
    return mkdocs.config.load_config(str(written), **settings)


def expanded(nav: Any, staged: Path, language: str) -> Any:
    """The navigation with its patterns replaced by pages, and its names in the language."""
    named = set(re.findall(r"[\w./-]+\.md", str(nav)))

    def expand(entry: Any) -> list[Any]:
        if isinstance(entry, dict):
            ((name, value),) = entry.items()
            below = value if isinstance(value, str) else [page for one in value for page in expand(one)]
            return [{CHINESE_NAMES[name] if language == "zh" else name: below}]
        if "*" not in entry:
            return [entry]
        found = (str(path.relative_to(staged)) for path in sorted(staged.glob(entry)))
        return [path for path in found if path not in named and fnmatch(path, entry) and path.count(".") == 1]

    return [page for one in nav for page in expand(one)]


if __name__ == "__main__":
    sys.exit(main())
