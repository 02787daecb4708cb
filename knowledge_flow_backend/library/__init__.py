"""Documents, their files and the libraries they stand in."""
