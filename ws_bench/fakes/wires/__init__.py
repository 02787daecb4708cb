"""How the APIs of four providers write requests and answers of a chat model."""
