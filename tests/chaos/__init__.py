"""What holds under faults: real processes, real faults, and a ledger of what clients were told."""
