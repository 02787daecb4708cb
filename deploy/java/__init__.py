"""Java servers on this machine: fetched once through Maven, started on loopback, ended with whoever started them."""
