"""Requests as Open WebUI 0.12 and LibreChat send them: headers and bodies, written from what they are known to send."""

import copy
import time
from typing import Any

import jwt

OPEN_WEBUI_HEADERS = {
    "Authorization": "Bearer local",
    "Content-Type": "application/json",
    "X-OpenWebUI-User-Name": "Ann%20Example",
    "X-OpenWebUI-User-Id": "3c0e1f86-4f0e-4a59-9f5e-6a5d5f4a1b7c",
    "X-OpenWebUI-User-Email": "ann@example.org",
    "X-OpenWebUI-User-Role": "user",
    "X-OpenWebUI-Chat-Id": "5e3f6a0c-58d4-4a0a-8f64-3b2a1c9d8e7f",
    "X-OpenWebUI-Message-Id": "0b6b1c52-7a54-4d6e-9a46-cc5ce21d5ad5",
}
LIBRE_CHAT_HEADERS = {
    "Authorization": "Bearer local",
    "Content-Type": "application/json",
    "X-Conversation-Id": "9a3f7f1e-44e2-4a15-9f3f-4a8a3b4f7c21",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
}

_TITLE = """### Task:
Write a short title for the chat.
### Guidelines:
- At most four words.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: What is a turn?
ASSISTANT: A turn is a question and its answer.
</chat_history>"""
_TAGS = """### Task:
Name one to three tags for the chat.

### Output:
JSON format: { "tags": ["tag1", "tag2"] }

### Chat History:
<chat_history>
USER: What is a turn?
</chat_history>"""
_COMPLETE = """### Task:
You complete what the user types.
---
### Context:
<chat_history>
USER: What is a turn?
</chat_history>
<type>General</type>
<text>And how long</text>
#### Output:
"""
_WITH_DOCUMENTS = """### Task:
Answer the question with the context, and cite it.

### Output:
A clear answer.

<context>
<source id="1" name="notes.md">A note on the tag <chat_history> of prompts.</source>
</context>

What does the note say?"""

_FOLLOW_UPS = """### Task:
Name three to five questions that the user may ask next, from their point of view.
### Output:
JSON format: { "follow_ups": ["Question 1?", "Question 2?"] }
### Chat History:
<chat_history>
USER: What is a turn?
ASSISTANT: A turn is a question and its answer.
</chat_history>"""
_QUERIES = """### Task:
Say what to search for, if anything, to answer the last question. Today is 2026-11-26.
### Output:
{ "queries": ["query1", "query2"] }
### Chat History:
<chat_history>
USER: What is a turn?
</chat_history>
"""
_LIBRE_CHAT_TITLE = """### Task: a title of five words at most, nothing else.
<chat_history>User: What is a turn?
AI: A turn is a question and its answer.</chat_history>"""
"""As docs/doors.md#librechat has its prompt."""

TASKS = {
    "title": _TITLE,
    "tags": _TAGS,
    "follow-ups": _FOLLOW_UPS,
    "queries": _QUERIES,
    "autocompletion": _COMPLETE,
    "LibreChat's title": _LIBRE_CHAT_TITLE,
}
NO_TASKS = {
    "documents": _WITH_DOCUMENTS,
    "a person's heading": "### Task:\nExplain what a turn is.",
    "a quotation": "What does `### Task:` with a <chat_history> mean?",
}


def open_webui(question: str, *earlier: str, model: str = "Georges") -> dict[str, Any]:
    """A question in a chat, after earlier questions and answers."""
    return {"stream": True, "model": model, "messages": _messages(question, earlier)} | {
        "stream_options": {"include_usage": True}
    }


def open_webui_task(prompt: str, model: str = "Georges") -> dict[str, Any]:
    """A task of the front end's own, about a chat."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "stream": False, "max_completion_tokens": 1000}


def open_webui_signed(key: str, user: str, secret: str) -> dict[str, str]:
    """Its headers with a key, where it has a secret to sign its user's name by: in place of the plain ones, for five
    minutes."""
    kept = {name: value for name, value in OPEN_WEBUI_HEADERS.items() if "-User-" not in name}
    now = int(time.time())
    claims = {"sub": user, "email": f"{user}@example.org", "name": user.title(), "role": "user", "iss": "open-webui"}
    token = jwt.encode({**claims, "iat": now, "exp": now + 300}, secret, "HS256")
    return {**kept, "Authorization": f"Bearer {key}", "X-OpenWebUI-User-Jwt": token}


def libre_chat(question: str, *earlier: str, model: str = "Georges") -> dict[str, Any]:
    """A question in a conversation."""
    return {
        "model": model,
        "user": "665f1c2ab1e2a3c4d5e6f708",
        "stream": True,
        "temperature": 1,
        "top_p": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "stream_options": {"include_usage": True},
        "messages": _messages(question, earlier),
    }


def with_image(request: dict[str, Any], place: int = -1) -> dict[str, Any]:
    """The same request with an image in one of its messages."""
    changed = copy.deepcopy(request)
    message = changed["messages"][place]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message["content"] = [{"type": "text", "text": message["content"]}, image]
    return changed


def _messages(question: str, earlier: tuple[str, ...]) -> list[dict[str, Any]]:
    said = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(earlier)]
    return [*said, {"role": "user", "content": question}]
