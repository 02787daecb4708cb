"""Where anchors lie in the text that the product's parser makes."""

import pytest

from knowledge_flow_backend.ingest.parsers import html
from tests.eval.passages import NotTheSameText, passages

PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>Tasks &#8212; docs</title></head><body>
<div role="navigation"><a href="x" id="nav">next</a></div>
<div role="main">
<section id="tasks"><span id="module-tasks"></span>
<h1>Tasks &amp; more<a class="headerlink" href="#tasks">¶</a></h1>
<p>First words.</p>
<p id="index-0">A topic of its own.</p>
<p>It goes on.</p>
<p id="index-1">Another topic.</p>
<section id="running"><h2>Running</h2>
<p>How to run.</p>
<dl class="py function">
<dt class="sig" id="tasks.run"><code>tasks.run(f)</code></dt>
<dt class="sig" id="tasks.start"><code>tasks.start(f)</code></dt>
<dd><p>Runs it.</p><pre>run(
  f &lt; 3)</pre></dd></dl>
<dl class="py class"><dt class="sig" id="tasks.Task">class tasks.Task</dt>
<dd><p>A task.</p>
<dl class="py method"><dt class="sig" id="tasks.Task.cancel">cancel()</dt><dd><p>Ends it.</p></dd></dl>
</dd></dl>
<span class="target" id="index-2"></span>
</section></section></div></body></html>"""


def texts(*anchors: str) -> dict[str, str]:
    content = html.parse(PAGE.encode()).content
    found = passages("tasks.html", PAGE.encode(), anchors)
    return {anchor: content[passage.start : passage.end] for anchor, passage in found.items()}


def test_a_section_is_its_heading_and_its_own_text() -> None:
    found = texts("tasks", "running")
    assert found["tasks"].startswith("Tasks & more")
    assert found["tasks"].endswith("Another topic.")
    assert found["running"] == "Running\n\nHow to run."


def test_a_term_is_itself_and_its_description_without_the_terms_within() -> None:
    found = texts("tasks.run", "tasks.start", "tasks.Task", "tasks.Task.cancel")
    assert found["tasks.run"].startswith("tasks.run(f)")
    assert found["tasks.run"].endswith("f < 3)")
    assert "How to run" not in found["tasks.run"]
    assert found["tasks.start"].startswith("tasks.start(f)")
    assert found["tasks.Task"] == "class tasks.Task\n\nA task."
    assert found["tasks.Task.cancel"] == "cancel()\n\nEnds it."


def test_a_topic_goes_on_to_the_next_anchor_that_is_asked_for() -> None:
    both = texts("index-0", "index-1")
    assert both == {"index-0": "A topic of its own.\n\nIt goes on.", "index-1": "Another topic."}
    assert texts("index-0")["index-0"].endswith("Another topic.")


def test_anchors_without_text_behind_them_or_outside_of_the_page_are_left_out() -> None:
    assert texts("index-2", "not-there") == {}


def test_a_mark_that_changes_the_text_is_noticed() -> None:
    """A page that has what looks like one of ours: it would be taken out of the text with them."""
    page = PAGE.replace("First", "First \ue0007\ue001")
    with pytest.raises(NotTheSameText):
        passages("tasks.html", page.encode(), ["tasks"])
