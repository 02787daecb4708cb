"""Doors for clients that speak a protocol other than ours: each is a subpackage, imported only where it is enabled.

A door translates: a client's request becomes an `Ask`, the turn's events become what the client expects. It knows
neither the database nor any other door; what two doors share is here.
"""
