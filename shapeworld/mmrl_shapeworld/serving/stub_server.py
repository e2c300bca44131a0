"""A server with the routes of vLLM 0.33 that `mmrl.understanding.serving` uses, over small real models, in a process.

    python -m mmrl_shapeworld.serving.stub_server --model shapeworld:sums --port 8001

`/_stub/faults` sets faults, `/_stub/reset` removes them and `/_stub/log` returns the requests so far; all other routes
are vLLM's. It answers whoever asks, and therefore listens on loopback alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from transformers.utils.logging import disable_progress_bar

from mmrl.build.schemes import provided_model
from mmrl.understanding.serving.served_engine import PROBE_ANSWERS
from mmrl_shapeworld.serving.stub_model import RequestError, StubModel

SLOW_GROUP = "slow group"
"""The entry of the log for a group that the fault `slow_group` keeps."""
WAITS_FOR_PAUSE = "waits for a pause"
"""The entry for a group that the fault `waits_for_pause` keeps in the middle until the server is paused."""
Handler = Callable[[Request], Awaitable[Response]]


def application(model: StubModel, key: str = "", seconds: float = 0.0) -> ASGIApp:
    """Return the routes over one model; the answers to a prompt take `seconds` or longer."""
    log: list[str] = []

    async def health(request: Request) -> Response:
        return Response(status_code=503 if model.fault("engine_dead") else 200)

    async def models(request: Request) -> Response:
        cards = [{"id": model.name, "object": "model", "parent": None}]
        cards += [{"id": name, "object": "model", "parent": model.name} for name in model.adapters]
        return JSONResponse({"object": "list", "data": cards})

    async def generate(request: Request) -> Response:
        started = time.monotonic()
        body = await request.json()
        if model.refuses or model.fault("paused"):
            raise RequestError(503, "Generation is paused; retry after it is resumed")
        for status in (400, 404, 429, 500, 502):
            if model.fault(f"http_{status}"):
                raise RequestError(status, f"injected {request.headers.get('authorization', '')}")
        if body["sampling_params"]["n"] > PROBE_ANSWERS and model.fault("slow_group"):
            log.append(SLOW_GROUP)
            while time.monotonic() < started + 60 and "slow_group" in model.faults:
                await asyncio.sleep(0.05)
        if model.fault("slow"):
            await asyncio.sleep(30)
        if model.fault("html"):
            return HTMLResponse("<html>Bad gateway</html>")
        reply = json.dumps(await model.generate(body, lambda: log.append(WAITS_FOR_PAUSE))).encode()
        if body["sampling_params"]["n"] > PROBE_ANSWERS:
            await asyncio.sleep(started + seconds - time.monotonic())
        if model.fault("truncated_json"):
            return Response(reply[: len(reply) // 2], media_type="application/json")
        if model.fault("truncated_body"):
            return Response(reply[: len(reply) // 2], headers={"content-length": str(len(reply))})
        return Response(reply, media_type="application/json")

    async def complete_chat(request: Request) -> Response:
        for status in (404, 429, 500):
            if model.fault(f"chat_{status}"):
                raise RequestError(status, "injected")
        return JSONResponse(model.complete_chat(await request.json()))

    async def load_lora(request: Request) -> Response:
        body = await request.json()
        model.load_lora(body["lora_name"], body["lora_path"])
        return Response(f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def unload_lora(request: Request) -> Response:
        model.unload_lora((await request.json())["lora_name"])
        return Response("Success")

    async def pause(request: Request) -> Response:
        if request.query_params.get("mode") != "keep":
            raise RequestError(500, "the stub keeps requests alone")
        model.scheduler.going.clear()
        model.scheduler.paused.set()
        return JSONResponse({"status": "paused"})

    async def resume(request: Request) -> Response:
        model.refuses = model.fault("stays_paused")
        model.scheduler.going.set()
        return JSONResponse({"status": "resumed"})

    async def collective_rpc(request: Request) -> Response:
        body = await request.json()
        if body["method"] != "reload_weights":
            raise RequestError(500, f"no such method: {body['method']}")
        model.reload(body["kwargs"]["weights_path"])
        return JSONResponse({"results": [None]})

    async def update_weights(request: Request) -> Response:
        """The tensors of the test's own sender come by a folder, whose path it adds to the description."""
        model.reload((await request.json())["update_info"]["folder"])
        return JSONResponse({"message": "Weights updated"})

    async def finish(request: Request) -> Response:
        model.version = (await request.json())["weight_version"]
        return JSONResponse({"message": "Weight update finished"})

    async def name_version(request: Request) -> Response:
        if not model.fault("version_ignored"):
            model.version = (await request.json())["new_version"]
        return JSONResponse({"success": True})

    async def weight_info(request: Request) -> Response:
        return JSONResponse({"weight_version": model.version})

    async def world_size(request: Request) -> Response:
        return JSONResponse({"world_size": 1})

    async def reset_prefix_cache(request: Request) -> Response:
        running = request.query_params.get("reset_running_requests") == "true"
        return JSONResponse({"success": model.reset_cache(running)})

    async def done(request: Request) -> Response:
        return JSONResponse({"message": "done"})

    async def faults(request: Request) -> Response:
        model.faults = await request.json()
        model.scheduler.paused.clear()
        return JSONResponse(model.faults)

    async def reset(request: Request) -> Response:
        model.reset()
        return JSONResponse({})

    async def read_log(request: Request) -> Response:
        return JSONResponse(log)

    posts: dict[str, Handler] = {
        "/inference/v1/generate": generate,
        "/v1/chat/completions": complete_chat,
        "/v1/load_lora_adapter": load_lora,
        "/v1/unload_lora_adapter": unload_lora,
        "/pause": pause,
        "/resume": resume,
        "/collective_rpc": collective_rpc,
        "/init_weight_transfer_engine": done,
        "/start_weight_update": done,
        "/update_weights": update_weights,
        "/finish_weight_update": finish,
        "/update_weight_version": name_version,
        "/reset_prefix_cache": reset_prefix_cache,
        "/reset_mm_cache": done,
        "/reset_encoder_cache": done,
        "/_stub/faults": faults,
        "/_stub/reset": reset,
    }
    gets: dict[str, Handler] = {
        "/health": health,
        "/v1/models": models,
        "/weight_info": weight_info,
        "/get_world_size": world_size,
        "/_stub/log": read_log,
    }
    routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
    routes += [Route(path, handler, methods=["GET"]) for path, handler in gets.items()]
    inner = Starlette(routes=routes, exception_handlers={RequestError: _error_reply})

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await inner(scope, receive, send)
            return
        path, headers = scope["path"], dict(scope["headers"])
        if not path.startswith("/_stub") and path != "/health":
            log.append(path)
        if key and path.startswith(("/v1", "/inference")) and headers.get(b"authorization") != f"Bearer {key}".encode():
            await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, send)
            return
        if path == "/inference/v1/generate" and model.fault("dropped"):
            receive.__self__.transport.abort()  # type: ignore[attr-defined]
            return
        await inner(scope, receive, send)

    return outer


async def _error_reply(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    body: dict[str, Any] = {"error": {"message": error.message, "type": "Error", "code": error.status}}
    headers = {"retry-after": "0"} if error.status == 429 else {}
    return JSONResponse(body, status_code=error.status, headers=headers)


def serve(folders: dict[str, str], ports: list[int], key: str = "", seconds: float = 0.0) -> None:
    """Serve each model at its own port of this process, until it is killed; `seconds` as in `application`."""
    disable_progress_bar()  # weights are loaded at each version

    async def run() -> None:
        servers = []
        for port, (name, folder) in zip(ports, folders.items(), strict=True):
            app = application(StubModel(name, folder), key, seconds)
            servers.append(uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error")))
        await asyncio.gather(*(server.serve() for server in servers))

    asyncio.run(run())


def main() -> None:
    """Serve one model until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="shapeworld:sums", help="a name that policy.model takes, or a folder")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    serve({arguments.model: provided_model(arguments.model, "vlm") or arguments.model}, [arguments.port])


if __name__ == "__main__":
    main()
