"""A real OpenSearch node on this machine, from the jars of Maven Central: for `make opensearch` and for the tests."""
