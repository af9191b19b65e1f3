"""The client's errors: the one place where they become ours."""

from __future__ import annotations

import ssl

from pika import exceptions as theirs

from outlast.errors import ConfigurationError, OutlastError, StoreError, StoreUnavailable

__all__ = ["mapped"]

_NO_VHOST, _REFUSED = 530, 403
_CLOSED = theirs.ConnectionClosedByBroker.__name__
"""In pika's guess of what a broken greeting means: the broker said that it refuses."""


def mapped(error: BaseException, shown: str) -> OutlastError:
    """Our error for one of pika's. Its text may name the broker, never a password."""
    if isinstance(error, OutlastError):
        return error
    error = _innermost(error)
    text = f"{shown}: {_words(error)}"
    match error:
        case ssl.SSLCertVerificationError():
            return ConfigurationError(
                f"{shown}: the broker's certificate is not trusted: {error.verify_message}. Name"
                " the authority that signed it by ?cafile= in the URL, and the broker by a name or"
                " an address that stands in the certificate"
            )
        case theirs.ProbableAuthenticationError() | theirs.ProbableAccessDeniedError() if (
            _CLOSED not in str(error)
        ):
            return StoreUnavailable(f"{text}; it hung up amid the greeting, as one that is stopped")
        case (
            theirs.AuthenticationError()
            | theirs.ProbableAuthenticationError()
            | theirs.ProbableAccessDeniedError()
        ):
            return ConfigurationError(f"{text}; check user, password and virtual host in the URL")
        case theirs.ConnectionClosed() if error.reply_code in (_NO_VHOST, _REFUSED):
            return ConfigurationError(text)
        case theirs.ChannelClosed() if error.reply_code == _REFUSED:
            return ConfigurationError(f"{text}; the user needs configure, write and read there")
        case theirs.AMQPConnectionError() | theirs.ChannelClosed() | OSError():
            return StoreUnavailable(text)
        case theirs.ChannelWrongStateError():
            return StoreUnavailable(text)
    return StoreError(text)


def _innermost(error: BaseException) -> BaseException:
    """What went wrong at the last of the addresses that were tried."""
    for _ in range(5):
        several = getattr(error, "exceptions", None)
        inner = several[-1] if several else getattr(error, "exception", None)
        if inner is None and error.args:
            inner = error.args[0]  # as pika wraps it when no address at all could be reached
        if not isinstance(inner, BaseException):
            break
        error = inner
    return error


def _words(error: BaseException) -> str:
    code, reason = getattr(error, "reply_code", None), getattr(error, "reply_text", "")
    if code is not None:
        return f"the broker says {code} {reason}"
    return f"{error}" or type(error).__name__
