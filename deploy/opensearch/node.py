"""An OpenSearch node on loopback, without TLS or users."""

import os
from collections.abc import Callable
from pathlib import Path

from deploy.java.server import JavaCommand, JavaServer
from deploy.opensearch.jars import HERE, class_path, find_java


class OpenSearchNode(JavaServer):
    """A node on 127.0.0.1:`port` that keeps its data in `directory`. No TLS, no users.

    `start()` takes 6 to 16 s, and once the time of the download of its jars.
    `short_lived`: compiled quickly and not well, for tests.
    """

    name = "OpenSearch"
    ready_path = "/_cluster/health"

    def __init__(
        self, checkout: Path, directory: Path, port: int, *, heap_mb: int = 512, short_lived: bool = False
    ) -> None:
        self.directory = directory.absolute()
        super().__init__(checkout, self.directory / "node.log", port)
        self._heap_mb = heap_mb
        self._short_lived = short_lived

    def prepare(self, say: Callable[[str], None]) -> JavaCommand:
        """Install the jars and find a Java that runs `LocalNode.java` from source. Raises `JavaServerFailed`."""
        java = find_java(os.environ)
        jars = class_path(self.checkout, os.environ, say)
        command = [str(java), f"-Xms{self._heap_mb}m", f"-Xmx{self._heap_mb}m"]
        command += ["-XX:TieredStopAtLevel=1"] if self._short_lived else []
        command += ["-cp", jars, str(HERE / "LocalNode.java"), str(self.directory), str(self.port)]
        return JavaCommand(command, {"PATH": os.defpath, "LANG": "C.UTF-8"}, self.directory)
