"""The driver's errors: the one place where they become ours."""

from __future__ import annotations

from redis import exceptions as theirs

from outlast.errors import (
    ConfigurationError,
    OutlastError,
    StoreError,
    StoreFull,
    StoreMoved,
    StoreUnavailable,
)

__all__ = ["NOT_DONE", "mapped"]

NOT_DONE = (
    theirs.NoScriptError,
    theirs.AskError,
    theirs.TryAgainError,
    theirs.ClusterDownError,
    theirs.ReadOnlyError,
)
"""The server didn't begin the call; on a fresh connection, maybe to another node, it will."""


def mapped(error: BaseException, shown: str) -> OutlastError:
    """Our error for one of redis-py. Its text may name the server, never a password."""
    text = f"{shown}: {str(error) or 'no answer in time'}"
    match error:
        case theirs.AuthenticationError() | theirs.AuthorizationError():
            return ConfigurationError(f"{shown} refuses the user or the password: {error}")
        case theirs.NoPermissionError():
            return _no_right(error, shown)
        case theirs.OutOfMemoryError():
            return StoreFull(f"{shown} has no memory left (maxmemory): nothing was stored")
        case theirs.AskError():
            return StoreUnavailable(f"{shown}: the slot of the jobs is moving to {error.node_addr}")
        case theirs.ClusterDownError() | theirs.TryAgainError() | theirs.ReadOnlyError():
            return StoreUnavailable(f"{shown} takes no calls now: {error}")
        case theirs.ConnectionError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return ConfigurationError(
                f"{shown}: the server's certificate is not trusted: {error} Name who signed it:"
                " ?ssl_ca_certs=FILE"
            )
        case theirs.ConnectionError() | theirs.TimeoutError() | OSError():
            return StoreUnavailable(f"can't reach {text}")
        case theirs.ResponseError():
            return _refused(error, shown)
        case theirs.InvalidResponse():
            return StoreUnavailable(f"{shown}: what answers there is no Redis: {error}")
    return StoreError(text)


def _no_right(error: BaseException, shown: str) -> ConfigurationError:
    return ConfigurationError(
        f"{shown}: the user's rights (ACL) are too small: {error}. docs/redis.md says what outlast"
        " needs"
    )


def _refused(error: theirs.ResponseError, shown: str) -> OutlastError:
    text = str(error)
    word = text.partition(" ")[0]
    if word == "NOAUTH":
        return ConfigurationError(f"{shown} wants a user or a password: {text}")
    if word == "OUTLASTMOVED":
        to = text.partition(" ")[2]
        return StoreMoved(f"the jobs of {shown} were moved to {to}, or are on their way: use that")
    if "user executing the script" in text:
        return _no_right(error, shown)
    if word in ("MISCONF", "BUSY", "LOADING", "NOREPLICAS"):
        return StoreUnavailable(f"{shown} takes no writes now: {text}")
    return StoreError(f"{shown}: {text}")
