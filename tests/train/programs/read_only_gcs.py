"""The emulator of Google's storage, as who may only read from a bucket sees it."""

from http import HTTPStatus

from gcp_storage_emulator import server
from gcp_storage_emulator.__main__ import main

handle = server.Router.handle


def refuse(router: server.Router, method: str) -> None:
    if method == server.GET:
        return handle(router, method)
    response = server.Response(router._request_handler)
    response.status = HTTPStatus.FORBIDDEN
    told = "somebody does not have storage.objects.create access to the object."
    response.json({"error": {"code": 403, "message": told}})
    return response.close()


server.Router.handle = refuse
main()
