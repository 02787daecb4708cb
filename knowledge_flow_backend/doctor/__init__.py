"""How knowledge flow examines what its configuration needs: its part of `turnwise doctor`."""
