"""How one instance follows the events of a turn that another one runs."""
