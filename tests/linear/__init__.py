"""What outside text reaches is linear in it: every regular expression and every parser of both services, measured."""
