"""From an uploaded file to chunks in the index. Imports nothing here: the parsing children load this package too."""
