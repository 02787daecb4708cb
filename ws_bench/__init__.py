"""The load tester, its reports and the fake model server."""
