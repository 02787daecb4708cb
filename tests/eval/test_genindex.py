"""The index as the manual's generator writes it."""

from tests.eval.genindex import Entry, entries

INDEX = """<html><body><a href="x.html#away">elsewhere</a>
<table style="width: 100%" class="indextable"><tr><td><ul>
  <li><a href="library/random.html#random.gauss">gauss() (in module random)</a></li>
  <li><a href="glossary.html#term-generator"><strong>generator</strong></a>, <a href="glossary.html#index-19">[1]</a>
    <ul>
      <li><a href="reference/expressions.html#index-22">expression</a></li>
      <li><a href="a.html#f">function</a>, <a href="b.html#f">[1]</a>, <a href="a.html#f">[2]</a></li>
    </ul></li>
  <li>
    gc

    <ul><li><a href="library/gc.html#module-gc">module</a></li></ul></li>
</ul></td><td><ul>
  <li>garbage
    <ul><li><em>see</em> collection</li></ul></li>
  <li><a href="whole.html">page</a></li>
</ul></td></tr></table></body></html>"""


def test_main_entries_and_the_lines_beneath_them_are_read_in_order() -> None:
    assert list(entries(INDEX)) == [
        Entry("gauss() (in module random)", "", ("library/random.html#random.gauss",)),
        Entry("generator", "", ("glossary.html#term-generator", "glossary.html#index-19")),
        Entry("generator", "expression", ("reference/expressions.html#index-22",)),
        Entry("generator", "function", ("a.html#f", "b.html#f")),
        Entry("gc", "module", ("library/gc.html#module-gc",)),
    ]
