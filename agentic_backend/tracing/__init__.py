"""OpenTelemetry: the ledger of a turn that has ended becomes its trace (docs/operations.md#traces)."""
