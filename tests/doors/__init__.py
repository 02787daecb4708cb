"""The table of docs/doors.md, cell by cell: each door over real connections, by the same cases."""
