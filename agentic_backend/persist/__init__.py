"""Sessions and their history in Postgres, as readers see them; `spool` brings the rows there."""
