"""What every comparator is told on its command line, and the tables that it finds in its database."""

import argparse
from dataclasses import dataclass

SOCKET_PATH = "/agentic/v1/chatbot/query/ws"
"""Where the service has its chat socket: a client needs to know no difference."""
READY_PATH = "/ready"

TABLES = """
CREATE TABLE session (
    session_id text PRIMARY KEY, user_id text NOT NULL, agent_id text NOT NULL, session_data json NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE TABLE session_history (
    session_id text, user_id text, rank integer, "timestamp" timestamptz NOT NULL, role text NOT NULL,
    channel text NOT NULL, exchange_id text NOT NULL, parts_json jsonb NOT NULL, metadata_json jsonb NOT NULL,
    PRIMARY KEY (session_id, user_id, rank)
);
"""
"""The service's own two tables without their indexes and constraints, which cost the server and not the program."""


@dataclass(frozen=True, slots=True)
class Options:
    """Where to listen, which model to ask, and where to store."""

    port: int
    model_url: str
    model: str
    dsn: str

    @property
    def sqlalchemy_url(self) -> str:
        """The database as SQLAlchemy's psycopg driver wants it."""
        return self.dsn.replace("postgresql://", "postgresql+psycopg://", 1)


def parse_options(description: str) -> Options:
    """The options of this process."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model-url", required=True, help="base URL of an OpenAI-compatible server, with /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--dsn", required=True, help="postgresql:// of a database with the tables")
    given = parser.parse_args()
    return Options(given.port, given.model_url, given.model, given.dsn)
