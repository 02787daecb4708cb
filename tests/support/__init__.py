"""What tests of every room share: ports, processes, throw-away servers, the stall detector."""
