"""Questions to the processes of a service: an HTTP address, the health of a gRPC server."""

import socket
from pathlib import Path

import httpx

# Messages of grpc.health.v1: the request names a service, the answer says that it is serving.
_CHECK = "/grpc.health.v1.Health/Check"
_DAGSTER_API = b"\x0a\x0aDagsterApi"
_SERVING = b"\x08\x01"


def has_status_200(url: str, *, timeout_s: float = 5.0) -> bool:
    """Return whether an address answers 200."""
    try:
        return httpx.get(url, timeout=timeout_s, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def answers_http(url: str, *, timeout_s: float) -> bool:
    """Return whether an address answers at all: a refusal is a sign of life too."""
    try:
        httpx.get(url, timeout=timeout_s, trust_env=False)
    except httpx.HTTPError:
        return False
    return True


def accepts_connections(path: Path) -> bool:
    """Return whether a server listens on this unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def serves_grpc(path: Path, *, timeout_s: float) -> bool:
    """Return whether Dagster's code server on this unix socket says that it is serving."""
    import grpc  # a fifth of a second that commands without children do not need

    # A channel of its own each time: a kept one waits up to two minutes before it connects again.
    with grpc.insecure_channel(f"unix:{path}") as channel:
        check = channel.unary_unary(_CHECK, request_serializer=bytes, response_deserializer=bytes)
        try:
            return bool(check(_DAGSTER_API, timeout=timeout_s) == _SERVING)
        except grpc.RpcError:
            return False
