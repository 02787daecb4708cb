"""Reads the body of a streamed answer: all that has arrived, in one step."""

import aiohttp


async def read_ready(content: aiohttp.StreamReader) -> bytes:
    """What `content.readany()` returns or raises, some 15 times faster where 50 tokens have come together.

    aiohttp keeps each HTTP chunk, which is a token, by itself. It takes them one by one, and after each one resumes the
    connection and calls its parser, although nothing was paused. While nothing is, the chunks only have to be joined
    and counted; in any other state aiohttp's own method reads.
    """
    if content._exception is None:
        while not content._buffer and not content._eof:
            await content._wait("read_ready")
        if content._buffer and not content._buffer_offset and not content._protocol._reading_paused:
            return _taken(content)
    return await content.readany()


def _taken(content: aiohttp.StreamReader) -> bytes:
    chunks = content._buffer
    data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    chunks.clear()
    content._size = 0
    content._cursor += len(data)
    if splits := content._http_chunk_splits:
        # Where chunks ended: as with aiohttp, what is left is the end of a chunk that was read to its end.
        last = splits[-1]
        splits.clear()
        if last == content._cursor:
            splits.append(last)
    return data
