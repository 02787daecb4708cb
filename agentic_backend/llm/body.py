"""Reads the body of a streamed answer: all that has arrived, in one step."""

import aiohttp


async def read_ready(content: aiohttp.StreamReader) -> bytes:
    """What `content.readany()` returns or raises, some 15 times faster where 50 tokens have come together.

    aiohttp keeps each HTTP chunk, which is a token, by itself. It takes them one by one, and after each one lets the
    connection and its parser go on. Here they are joined and counted, and that is done once.
    """
    if content._exception is None:
        while not content._buffer and not content._eof:
            await content._wait("read_ready")
        if content._buffer and not content._buffer_offset:
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
    content._protocol.resume_reading()  # the parser may have stopped in the middle of what it was given
    return data
