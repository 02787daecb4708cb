"""Doors for clients that speak another protocol than ours: each is a package of this one, imported where it is on.

A door translates: a client's request becomes an `Ask`, the turn's events become what the client expects. It knows no
database and no other door; what two doors share lies here.
"""
