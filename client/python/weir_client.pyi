"""Has the types of weir_client.py, for type checkers. It needs no newer Python than the client."""
import typing
import httpx

_Policy = typing.Tuple[str, float, float, float]  # Name, quota, tokens left, seconds until the reset.

def read(headers: httpx.Headers, now: float) -> typing.Tuple[typing.Optional[float], typing.List[_Policy]]: ...

class Transport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    max_wait: float
    spread: float
    retries: int
    key: typing.Callable[[httpx.Request], typing.Hashable]
    route: typing.Callable[[httpx.Request], typing.Hashable]
    def __init__(
        self,
        transport: typing.Union[httpx.BaseTransport, httpx.AsyncBaseTransport, None] = None,
        max_wait: float = 30,
        spread: float = 5,
        retries: int = 2,
        key: typing.Optional[typing.Callable[[httpx.Request], typing.Hashable]] = None,
        route: typing.Optional[typing.Callable[[httpx.Request], typing.Hashable]] = None,
    ) -> None: ...
