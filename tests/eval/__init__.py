"""How well search finds: questions and answers made of the Python manual, asked of the product's own pipeline."""
