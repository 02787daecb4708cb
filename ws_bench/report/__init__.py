"""What a person reads of a run: text, HTML, comparisons, the live line."""
