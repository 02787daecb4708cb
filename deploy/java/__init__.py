"""Java servers on this machine: downloaded once through Maven, started on loopback, stopped with their parent."""
