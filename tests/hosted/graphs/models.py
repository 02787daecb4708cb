"""The model of all graphs here, as a team's own module makes it: of a server of its own, not of the service's."""

import os

from langchain_openai import ChatOpenAI

_URL = os.environ["MODEL_URL"]
model = ChatOpenAI(model="scripted", api_key="none", base_url=_URL, stream_usage=True)
hasty = ChatOpenAI(model="scripted", api_key="none", base_url=_URL, stream_usage=True, max_retries=0)
