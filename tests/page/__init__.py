"""ESLint and the TypeScript compiler over the JavaScript of the pages: `make check` runs `python -m tests.page`."""
