"""What PyJWT says of a key's length, of which it only warns."""

import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm


@pytest.mark.parametrize(("bits", "long_enough"), [(1024, False), (2048, True)])
def test_a_short_key_has_a_sentence_said_of_it(bits: int, long_enough: bool) -> None:
    """backend_kit/auth/keys.py takes no key of which `check_key_length` says anything."""
    public = rsa.generate_private_key(65537, bits).public_key()
    key = jwt.PyJWK(json.loads(RSAAlgorithm.to_jwk(public)) | {"kid": "k"}, "RS256")
    said = key.Algorithm.check_key_length(key.Algorithm.prepare_key(key.key))
    assert (said is None) is long_enough
