"""Keep objects in a bucket of an S3-compatible store (botocore, the extra `store`).

Credentials come from the environment and the other sources of the AWS SDK's standard chain, never
from the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from federated.errors import EspalierError, require_extra
from federated.safe_text import make_safe

__all__ = ["Bucket", "ObjectStore", "StoreAway", "StoreFailure"]

PIECE = 1 << 20  # bytes that are read at a time
TIMEOUT, ATTEMPTS = 30.0, 2  # seconds for an answer, and attempts
PROBE_TIMEOUT = 2.5  # seconds
REGION = "us-east-1"  # of stores that have none
RIGHTS = "s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject"
# what an error code of S3 means for those who configure the store
REMEDIES = {
    "AccessDenied": f"the credentials need the rights {RIGHTS}",
    "AuthorizationHeaderMalformed": "correct http.region",
    "ExpiredToken": "renew the credentials",
    "InvalidAccessKeyId": "correct the credentials (AWS_ACCESS_KEY_ID)",
    "NoSuchBucket": "create the bucket, or correct http.store",
    "PermanentRedirect": "correct http.region",
    "RequestTimeTooSkewed": "correct the clock of this machine",
    "SignatureDoesNotMatch": "correct the credentials (AWS_SECRET_ACCESS_KEY)",
}
# statuses of a client's requests that the store may accept later
PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
NO_CREDENTIALS = (
    "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or configure another source "
    "of the AWS SDK"
)


class StoreFailure(EspalierError):
    """A request to a store failed. It may succeed later."""


class StoreAway(StoreFailure):
    """The store cannot be reached, or can serve nobody at present."""


@dataclass(frozen=True)
class Bucket:
    """Where objects are kept.

    name: of the bucket.
    prefix: of all keys; empty, or ends with a slash.
    endpoint: address of the store; empty: Amazon S3.
    region: empty: that of the AWS configuration.
    public: address of the store for devices; empty: `endpoint`.
    """

    name: str
    prefix: str
    endpoint: str = ""
    region: str = ""
    public: str = ""

    @property
    def shown(self) -> str:
        place = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.name}/{self.prefix}{place}"


class ObjectStore:
    """The objects of a bucket whose keys have a prefix, which the keys here lack. Methods may be
    called from any thread; they raise StoreFailure.
    """

    def __init__(self, bucket: Bucket) -> None:
        """Raise MissingExtra."""
        self.bucket = bucket
        with require_extra("http.store", "store"), self._explaining():
            self._client = make_client(bucket, bucket.endpoint)
            public = bucket.public
            self._signer = make_client(bucket, public) if public else self._client
            self._prober = make_client(bucket, bucket.endpoint, PROBE_TIMEOUT, attempts=1)

    def put(self, key: str, path: Path) -> None:
        """Store a file. Raises OSError if it cannot be read."""
        with path.open("rb") as file, self._explaining():
            self._client.put_object(**self._name(key), Body=file)

    def read(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces."""
        with self._explaining():
            body = self._client.get_object(**self._name(key))["Body"]
            with body:
                while piece := body.read(PIECE):
                    yield piece

    def list(self, folder: str) -> dict[str, int]:
        """Return the sizes of the objects whose keys begin with `folder`, in order."""
        prefix, found = self.bucket.prefix, dict[str, int]()
        with self._explaining():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket.name, Prefix=prefix + folder
            )
            for page in pages:
                for one in page.get("Contents", ()):
                    found[one["Key"].removeprefix(prefix)] = int(one["Size"])
        return found

    def probe(self) -> None:
        """Raise StoreFailure if the store does not list objects within a few seconds."""
        with self._explaining():
            self._prober.list_objects_v2(
                Bucket=self.bucket.name, Prefix=self.bucket.prefix, MaxKeys=1
            )

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, if they are there."""
        with self._explaining():
            for key in keys:
                self._client.delete_object(**self._name(key))

    def sign_get(self, key: str, seconds: int) -> str:
        """Return an address that permits anyone who knows it to download an object for a while."""
        return self._sign("get_object", seconds, self._name(key))

    def sign_put(self, key: str, size: int, seconds: int) -> str:
        """Return an address that permits anyone who knows it to upload an object of exactly this
        size for a while.
        """
        return self._sign("put_object", seconds, {**self._name(key), "ContentLength": size})

    def _sign(self, method: str, seconds: int, parameters: dict[str, Any]) -> str:
        with self._explaining():
            url: str = self._signer.generate_presigned_url(method, parameters, ExpiresIn=seconds)
            return url

    def _name(self, key: str) -> dict[str, Any]:
        return {"Bucket": self.bucket.name, "Key": self.bucket.prefix + key}

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            CredentialRetrievalError,
            HTTPClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )

        try:
            yield
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
            raise StoreFailure(f"{self.bucket.shown}: {NO_CREDENTIALS} ({error})") from error
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            away = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in PASSING
            kind = StoreAway if away else StoreFailure
            raise kind(f"{self.bucket.shown}: {describe(error.response)}") from error
        except (ConnectionError, HTTPClientError) as error:  # it names the address
            raise StoreAway(make_safe(f"{self.bucket.shown}: {error}")) from error
        except BotoCoreError as error:
            raise StoreFailure(make_safe(f"{self.bucket.shown}: {error}")) from error


def make_client(
    bucket: Bucket, endpoint: str, timeout: float = TIMEOUT, attempts: int = ATTEMPTS
) -> Any:
    """Return a client. timeout: seconds to connect, and for each answer."""
    import botocore.config
    import botocore.session

    session = botocore.session.get_session()
    config = botocore.config.Config(
        signature_version="s3v4",
        # stores at an address of their own often have no name for each bucket
        s3={"addressing_style": "path" if endpoint else "auto"},
        connect_timeout=timeout,
        read_timeout=timeout,
        retries={"mode": "standard", "total_max_attempts": attempts},
        # other stores than Amazon's do not know its newer checksums; digests are checked anyway
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    region = bucket.region or session.get_config_variable("region") or REGION
    return session.create_client(
        "s3", region_name=region, endpoint_url=endpoint or None, config=config
    )


def describe(answer: dict[str, Any]) -> str:
    """Return why a request was refused, with a remedy if one is known."""
    found = answer.get("Error", {})
    code, message = str(found.get("Code", "")), str(found.get("Message", ""))
    remedy = REMEDIES.get(code, "")
    if code == "404":  # to a request whose answer has no body
        code = "not found"
    return make_safe(f"{code}: {message}" + (f"; {remedy}" if remedy else ""))
