"""A real Keycloak on this machine, with our realm, from Maven Central: for `make keycloak` and for the tests."""
