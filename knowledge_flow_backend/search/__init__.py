"""The question: routes, service, wire shapes; which engine answers it is behind the port of `index`."""
