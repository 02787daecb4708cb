"""Tests of the AG-UI door without a service."""
