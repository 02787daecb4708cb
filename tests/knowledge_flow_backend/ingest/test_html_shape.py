"""Pages whose tags nest too deep are refused before they are parsed, and no others."""

import pytest

from knowledge_flow_backend.ingest.parsers.html import parse
from knowledge_flow_backend.ingest.parsers.html_shape import MAX_ATTRIBUTES, MAX_OPEN, checked
from knowledge_flow_backend.library.reasons import Reason, Refused

MANY = 5_000

DEEP = {
    "elements": "<div>" * MANY,
    "formatting": "<b>" * MANY,
    "formatting that the next paragraph has again": "".join(f"<p><b a={at}>x</p>" for at in range(MANY)),
    "an end in an attribute": "<div title='</div>'>" * MANY,
    "an end in a comment": "<div><!--</div>-->" * MANY,
    "an end in a script": "<div><script></div></script>" * MANY,
    "an end that does not reach": "<div><table></div></table>" * MANY,
    "lists in lists": "<ul><li>" * MANY,
    "tables in tables": "<table><tr><td>" * MANY,
    "drawings": "<svg>" + "<g>" * MANY,
    "slashes that close nothing": "<div/>" * MANY,
    "attributes": f"<p {' '.join(f'a{at}' for at in range(MANY))}>x",
    "attributes of the page, one by one": "".join(f"<body a{at}=x>" for at in range(MANY)),
}
SHALLOW = {
    "siblings": "<div>x</div>" * MANY,
    "paragraphs that nobody closes": "<p>x" * MANY,
    "items that nobody closes": f"<ul>{'<li><b>x</b>' * MANY}</ul>",
    "rows that nobody closes": f"<table>{'<tr><td><font>x<td>y' * MANY}</table>",
    "formatting closed in another order": "<b><i>x</b></i>" * MANY,
    "the same formatting in every paragraph": "<p><b>x</p>" * MANY,
    "anchors that nobody closes": "<a name=x><h2>y</h2>" * MANY,
    "drawings of many shapes": f"<p>x</p><svg>{'<path d=x />' * MANY}</svg>",
    "less than": f"<p>x</p><script>{'if (a<b) c<d;' * MANY}</script>",
    "options": f"<p>x</p><select>{'<option>y' * MANY}</select>",
    "rows without a table": "<tr><td>x" * MANY,
    "forms": "<form><p>x</form>" * MANY,
}


@pytest.mark.parametrize("page", DEEP.values(), ids=DEEP)
def test_a_page_that_nests_too_deep_is_refused(page: str) -> None:
    with pytest.raises(Refused) as refusal:
        checked(page)
    assert refusal.value.reason is Reason.TOO_COMPLEX


@pytest.mark.parametrize("page", SHALLOW.values(), ids=SHALLOW)
def test_a_page_that_a_browser_reads_as_flat_is_not(page: str) -> None:
    assert "option" not in checked(page)


def test_the_bounds_are_those_that_are_named() -> None:
    assert checked("<i>" * MAX_OPEN) == "<i>" * MAX_OPEN
    with pytest.raises(Refused):
        checked("<i>" * (MAX_OPEN + 1))
    assert checked("<p" + " a=b" * MAX_ATTRIBUTES + ">")
    with pytest.raises(Refused):
        checked("<p" + " a=b" * (MAX_ATTRIBUTES + 1) + ">")


def test_what_stands_around_options_stays() -> None:
    assert parse(b"<p>before</p><select><option value='>'>one</select><p>behind</p>").content == "before\n\nbehind"


def test_pages_put_behind_each_other_into_one_file_are_read() -> None:
    """Each brings the same attributes of `html` and `body`, which the parser keeps once."""
    page = "<html lang='en' dir='ltr'><body bgcolor='white' text='black'><p>Page {}.</p></body></html>\n"
    assert "Page 199." in parse("".join(map(page.format, range(200))).encode()).content
