"""HTML: what a reader came for, rewritten as markdown; menus, banners and scripts are left out."""

import re

from selectolax.lexbor import LexborHTMLParser, LexborNode

from knowledge_flow_backend.ingest.blocks import Kind, Parsed, Writer
from knowledge_flow_backend.ingest.parsers.decode import clean, decode
from knowledge_flow_backend.ingest.parsers.html_shape import checked
from knowledge_flow_backend.ingest.tables import table
from knowledge_flow_backend.library.reasons import Reason, Refused

_CHARSET = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*(?:["']\s*)?([A-Za-z0-9_:.-]{2,40})""", re.IGNORECASE)
_HEAD_BYTES = 4096
_MAX_DEPTH = 200

_NEVER_READ = (
    "script, style, noscript, template, svg, canvas, iframe, object, embed, audio, video, form, button, input, select, "
    "textarea, dialog, nav, aside, menu, [hidden], [aria-hidden=true], [role=navigation], [role=search], "
    "[role=complementary], [role=contentinfo], [role=menu], a.headerlink, .sphinxsidebar"
)
_FRAMING = "header, footer, [role=banner]"
"""Left out where they frame the page; within an article a header holds its title."""
_MAIN = "main, [role=main], article"
_LEAST_SHARE = 0.3
"""Share of the page's text that the marked main part must hold to be taken for all there is to read."""

_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_PARAGRAPHS = frozenset({"p", "dt", "summary", "figcaption", "caption", "address", "legend"})
_SPLITTING = frozenset(
    {*_HEADINGS, *_PARAGRAPHS, "div", "section", "article", "main", "header", "footer", "ul", "ol", "dl", "dd", "pre"}
    | {"table", "blockquote", "figure", "hr", "details", "body", "center", "fieldset"}
)
_SPACES = re.compile(r"\s+")
_BACKTICKS = re.compile(r"`+")
_LANGUAGE = re.compile(r"(?:language|lang|highlight)-([A-Za-z0-9+#]{1,20})")


def parse(data: bytes) -> Parsed:
    """Parse one file. Raises `Refused`."""
    declared = _CHARSET.search(data[:_HEAD_BYTES])
    tree = LexborHTMLParser(checked(decode(data, declared[1].decode("ascii") if declared else None)))
    if tree.body is None:
        raise Refused(Reason.NO_TEXT)
    head = tree.css_first("head > title")
    title = _line(head.text()) if head is not None else ""
    for node in tree.css(_NEVER_READ):
        if node.tag not in ("body", "html"):
            node.decompose()
    page = _Page()
    page.read(_main_part(tree.body), 0)
    page.end_paragraph()
    # The heading names the document; the head's title often carries the site's name behind it.
    return page.writer.parsed(page.first_heading or title)


def _main_part(body: LexborNode) -> LexborNode:
    whole = len(body.text())
    for node in body.css(_MAIN):
        if len(node.text()) >= whole * _LEAST_SHARE:
            return node
    for frame in body.css(_FRAMING):
        frame.decompose()
    return body


class _Page:
    """Walks the tree; text outside of any block element gathers to a paragraph."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.first_heading = ""
        self._loose: list[str] = []

    def read(self, parent: LexborNode, depth: int) -> None:
        """Read the children of an element."""
        if depth > _MAX_DEPTH:
            raise Refused(Reason.TOO_COMPLEX)
        node = parent.child
        while node is not None:
            if node.tag == "-text":
                self._loose.append(node.text_content or "")
            elif not self._read_block(node, depth):
                self._read_inline(node, depth)
            node = node.next

    def end_paragraph(self) -> None:
        """Write the text gathered so far."""
        text, self._loose = _flow("".join(self._loose)), []
        self.writer.add(Kind.PROSE, text)

    def _read_block(self, node: LexborNode, depth: int) -> bool:
        """Read a block element; False for any other node."""
        tag = node.tag or ""
        if tag not in _SPLITTING:
            return False
        self.end_paragraph()
        if tag in _HEADINGS:
            self._heading(_HEADINGS[tag], _line(node.text()))
        elif tag == "pre":
            self.writer.add(Kind.CODE, _fence(node))
        elif tag == "table" and _is_data(node):
            self.writer.add(Kind.TABLE, _table(node))
        elif tag in ("ul", "ol") and _is_simple(node):
            self.writer.add(Kind.PROSE, _list(node, 0))
        elif tag == "hr":
            return True
        else:
            self.read(node, depth + 1)
            self.end_paragraph()
        return True

    def _read_inline(self, node: LexborNode, depth: int) -> None:
        if node.tag == "br":
            self._loose.append("\x01")
        elif node.tag == "code" and not _holds_blocks(node):
            self._loose.append(_code(node))
        elif node.tag == "img":
            self._loose.append(node.attributes.get("alt") or "")
        elif node.is_element_node:
            # An element of an unknown or inline kind may still hold blocks: links around cards, custom elements.
            self.read(node, depth + 1)

    def _heading(self, level: int, title: str) -> None:
        if not title:
            return
        if level == 1 and not self.first_heading:
            self.first_heading = title
        self.writer.heading(level, title)


def _flow(text: str) -> str:
    """Inline text with white space as HTML shows it; \\x01 stands for a line break."""
    lines = (_line(line) for line in text.split("\x01"))
    return "\n".join(line for line in lines if line)


def _line(text: str) -> str:
    return clean(_SPACES.sub(" ", text)).strip()


def _code(node: LexborNode) -> str:
    text = _line(node.text())
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""


def _inline(node: LexborNode) -> str:
    """The text of an element that holds no blocks, on one line."""
    page = _Page()
    page.read(node, 0)
    return _line("".join(page._loose).replace("\x01", " "))


def _fence(node: LexborNode) -> str:
    text = clean(node.text()).strip("\n").rstrip()
    if not text.strip():
        return ""
    mark = "`" * max(3, 1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
    return f"{mark}{_language(node)}\n{text}\n{mark}"


def _language(node: LexborNode) -> str:
    inner = node.css_first("code")
    outer = node.parent.parent if node.parent is not None else None
    for place in (node, inner, node.parent, outer):
        found = _LANGUAGE.search((place.attributes.get("class") or "") if place is not None else "")
        if found and found[1] not in ("default", "text", "none"):
            return found[1]
    return ""


def _holds_blocks(node: LexborNode) -> bool:
    return any(inner.tag in _SPLITTING for inner in node.traverse() if inner.mem_id != node.mem_id)


def _is_data(node: LexborNode) -> bool:
    """Whether a table holds data: no table or list within, and more than one cell. Others only lay out a page."""
    inner = [below.tag for below in node.traverse() if below.mem_id != node.mem_id]
    cells = sum(1 for tag in inner if tag in ("td", "th"))
    return cells > 1 and not any(tag in ("table", "ul", "ol", "pre", *_HEADINGS) for tag in inner)


def _table(node: LexborNode) -> str:
    rows = [
        [_line(cell.text(separator=" ")) for cell in row.iter() if cell.tag in ("td", "th")]
        for row in node.traverse()
        if row.tag == "tr" and row.child is not None
    ]
    caption = node.css_first("caption")
    above = _line(caption.text()) if caption is not None else ""
    written = table(rows)
    return f"{above}\n\n{written}" if above and written else written


def _is_simple(node: LexborNode) -> bool:
    """Whether a list holds lines of text and lists of them, so that it is one block."""
    inner = (inner.tag for inner in node.traverse() if inner.mem_id != node.mem_id)
    return not any(tag in _SPLITTING and tag not in ("ul", "ol", "p", "div") for tag in inner)


def _list(node: LexborNode, depth: int) -> str:
    if depth > _MAX_DEPTH // 4:
        raise Refused(Reason.TOO_COMPLEX)
    lines: list[str] = []
    number = 0
    for item in node.iter():
        if item.tag != "li":
            continue
        number += 1
        below = [inner for inner in item.iter() if inner.tag in ("ul", "ol")]
        nested = [_list(inner, depth + 1) for inner in below]
        for inner in below:
            inner.decompose()
        mark = f"{number}." if node.tag == "ol" else "-"
        text = _line(item.text(separator=" ")) if _holds_blocks(item) else _inline(item)
        if text or nested:
            lines.append(f"{'  ' * depth}{mark} {text}".rstrip())
            lines.extend(part for part in nested if part)
    return "\n".join(lines)
