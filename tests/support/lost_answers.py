"""Objects that are made and deleted although a busy machine loses an answer now and then."""

from typing import Any, Final

from egpu_base.errors import AlreadyExists, NotFound, Unavailable
from egpu_base.kubernetes import Client
from support.waiting import until

SECONDS: Final = 120


async def made(client: Client, path: str, body: dict[str, Any]) -> None:
    """Create an object. After a lost answer it may be there already."""
    lost = False

    async def there() -> bool:
        nonlocal lost
        try:
            await client.raw("POST", path, body=body)
        except AlreadyExists:
            if not lost:
                raise
        except Unavailable:
            lost = True
            return False
        return True

    await until(there, path, seconds=SECONDS)


async def deleted(client: Client, path: str) -> None:
    """Delete an object, which a finalizer may keep."""

    async def answered() -> bool:
        try:
            await client.raw("DELETE", path)
        except NotFound:
            return True
        except Unavailable:
            return False  # definitions of megabytes take their time
        return True

    await until(answered, path, seconds=SECONDS)


async def removed(client: Client, path: str) -> None:
    """Delete an object, and wait until it is gone."""

    async def missing() -> bool:
        await deleted(client, path)
        try:
            await client.raw("GET", path)
        except NotFound:
            return True
        except Unavailable:
            return False
        return False

    await until(missing, path, seconds=SECONDS)
