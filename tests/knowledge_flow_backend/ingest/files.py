"""Documents of each format, made here: the same small text, so that tests can say what must be found in them."""

from collections.abc import Sequence

MARKDOWN = """---
title: "Front title"
tags: [a]
---
# Turning the wheel

An intro of one sentence.

## Persist a *turn*

The finished turn is appended to a spool. Then the final is sent.

```python
def turn():

    return "# not a heading"
```

| key | value |
|-----|-------|
| ack | spool |

### Deeper `code`

- one
- two

## Last

End.
"""

HTML = """<!doctype html><html><head><meta charset="utf-8"><title>Wheel &amp; co | Site</title>
<style>p { color: red }</style><script>var hidden = "script";</script></head>
<body><header><a href="/">Home banner</a></header><nav><ul><li>Menu entry</li></ul></nav>
<main><header><h1>Turning the <em>wheel</em><a class="headerlink" href="#x">\u00b6</a></h1></header>
<p>An  intro\n of <b>one</b> sentence.<br>Second line.</p>
<section><h2>Persist a turn</h2>
Loose text &lt;here&gt;.
<p>The finished turn is appended to a <code>spool</code>.</p>
<div class="highlight-python"><pre>def turn():\n\n    return 1\n</pre></div>
<table><tr><th>key</th><th>value</th></tr><tr><td>ack</td><td>a|b</td></tr></table>
<ul><li>one<ol><li>inner</li></ol></li><li><p>two</p></li></ul></section>
<aside>Advertisement</aside><p hidden>unseen</p></main>
<footer>Imprint</footer></body></html>"""


def pdf(
    pages: Sequence[Sequence[str]], *, title: str = "", outline: Sequence[tuple[int, str]] = (), encrypt: bytes = b""
) -> bytes:
    """A minimal valid PDF: lines of Latin-1 on pages, optionally bookmarks (page from 0, title) and an /Encrypt entry.

    A line that begins with "# " is printed without it, in letters of twice the size.
    """
    objects: list[bytes] = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    kids = []
    for lines in pages:
        text = "".join(
            f"/F1 {24 if line.startswith('# ') else 12} Tf ({_escaped(line.removeprefix('# '))}) Tj T*\n"
            for line in lines
        )
        stream = f"BT 28 TL 72 720 Td\n{text}ET".encode("latin-1")
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % len(objects)
        )
        kids.append(len(objects))
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(b"%d 0 R" % k for k in kids), len(kids))
    if outline:
        first = len(objects) + 2
        last = first + len(outline) - 1
        root = len(objects) + 1
        objects.append(b"<< /Type /Outlines /First %d 0 R /Last %d 0 R /Count %d >>" % (first, last, len(outline)))
        for at, (page, name) in enumerate(outline):
            more = b" /Next %d 0 R" % (first + at + 1) if first + at < last else b""
            back = b" /Prev %d 0 R" % (first + at - 1) if at else b""
            objects.append(
                b"<< /Title (%s) /Parent %d 0 R /Dest [%d 0 R /Fit]%s%s >>"
                % (_escaped(name).encode("latin-1"), root, kids[page], more, back)
            )
        objects[0] = b"<< /Type /Catalog /Pages 2 0 R /Outlines %d 0 R >>" % root
    trailer = b""
    if title:
        objects.append(b"<< /Title (%s) >>" % _escaped(title).encode("latin-1"))
        trailer += b" /Info %d 0 R" % len(objects)
    if encrypt:
        objects.append(encrypt)
        trailer += b" /Encrypt %d 0 R /ID [<00> <00>]" % len(objects)
    return assembled(objects, trailer)


def assembled(objects: Sequence[bytes], trailer: bytes) -> bytes:
    """The file of numbered objects, the first of which is its catalogue."""
    data = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    data += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    data += b"trailer << /Size %d /Root 1 0 R%s >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, trailer, table)
    return bytes(data)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
