# judge_mock.py KEY PORT_FILE: a chat service that answers as judges, proxies and networks do on bad days. A chat's text
# has "ID=n TRUE=YES|NO"; each try of an id meets the next of its troubles, chosen by the id. Whatever is not a proper answer
# says the opposite of the truth, so that a verdict taken from it is seen. GET /stats: requests, and the most at once.
import asyncio, email.utils, json, re, sys, time

KEY, counts, stats = sys.argv[1], {}, {"num": 0, "most": 0, "now": 0, "early": 0}
held_from = held_until = 0.0

def chat(text, **more):
    return json.dumps({"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", **more}]})

def http(status, body, headers="", length=None):
    data = body.encode()
    return f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {len(data) if length is None else length}\r\n{headers}\r\n".encode() + data

# troubles: bytes to send, and whether the connection is closed after them; "retried" ones are followed by another try
def trouble(kind, lie, key):
    yes_no = {
        "500": http(500, chat(lie)), "502": http(502, "<html>bad gateway " + lie), "408": http(408, chat(lie)),
        "503": http(503, chat(lie), "Retry-After: 0\r\n"),
        "cut": http(200, chat(lie)[:-20], length=len(chat(lie))),
        "drop": b"", "half head": b"HTTP/1.1 200 x\r\nContent-Le",
        "chunks": b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n" + chat(lie).encode(),
        # never asked again: no verdict
        "garbage": http(200, "\x00\x01" + lie), "html": http(200, f"<html><body>{lie}</body></html>"),
        "cut json": http(200, chat(lie)[:-1]), "short length": http(200, chat(lie), length=len(chat(lie)) - 1),
        "list": http(200, f'["{lie}"]'), "text": http(200, f'{{"choices":[{{"text":"{lie}"}}]}}'),
        "null": http(200, chat(None)), "parts": http(200, chat([{"type": "text", "text": lie}])),
        "two": http(200, f'{{"choices":[{{"message":{{"content":"{lie}"}}}},{{"message":{{"content":"maybe"}}}}]}}'),
        "both": http(200, chat(lie + "\n" + ("NO" if lie == "YES" else "YES"))), "mixed": http(200, chat(f"I would not say {lie}.")),
        "word cut": http(200, chat(lie, finish_reason="length")), "thoughts": http(200, chat(f"<think>so it is\n{lie}")),
        "moved": http(302, chat(lie), "Location: /v1/elsewhere\r\n"), "key": http(401, json.dumps({"error": {"message": f"bad key {key}, {lie}"}})),
        "no http": f"{lie}\n".encode(), "ssh": b"SSH-2.0-OpenSSH\r\n", "twice": http(200, chat(lie), "Content-Length: 3\r\n"),
        "zip": b"HTTP/1.1 200 x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n" + lie.encode()[:3].ljust(3),
        "created": http(201, chat(lie)),
    }
    return yes_no[kind]

RETRIED = ["500", "502", "408", "503", "cut", "drop", "half head", "chunks", "429", "date"]
WRONG = ["garbage", "html", "cut json", "short length", "list", "text", "null", "parts", "two", "both", "mixed", "word cut", "thoughts", "moved", "key",
         "no http", "ssh", "twice", "zip", "created"]

async def say(writer, truth, n):
    if n % 5 == 1:  # a verdict in many packets
        data = http(200, chat(f"**{truth}**"))
        for i in range(0, len(data), 16):
            writer.write(data[i:i + 16])
            await writer.drain()
            await asyncio.sleep(0.005)
    elif n % 5 == 2:
        writer.write(b"HTTP/1.1 200 x\r\nConnection: close\r\n\r\n" + chat(f"<think>yes or no</think>{truth}.").encode())
        return False
    else:
        writer.write(http(200, chat(truth.lower() if n % 2 else truth + ", as asked.")))
    return True

async def answer(writer, head, body):
    global held_from, held_until
    stats["num"] += 1
    stats["now"] += 1
    stats["most"] = max(stats["most"], stats["now"])
    stats["early"] += held_from + 0.3 < time.time() < held_until - 0.05  # what was on its way is no offence
    try:
        await asyncio.sleep(0.05)
        n, truth = re.search(r"ID=(\d+) TRUE=(\w+)", body).groups()
        n, lie = int(n), "NO" if truth == "YES" else "YES"
        if f"Authorization: Bearer {KEY}" not in head:
            writer.write(http(401, '{"error":{"message":"wrong key"}}'))
            return True
        tries = counts[n] = counts.get(n, 0) + 1
        if n % 4 == 0 and tries <= 1 + n % 3:
            kind = RETRIED[(n // 4 + tries) % len(RETRIED)]
            if kind in ("429", "date"):
                if stats["num"] > 200 and held_until == 0:  # once: then all must wait
                    held_until = int(time.time()) + 2 if kind == "date" else time.time() + 1
                    after = email.utils.formatdate(held_until, usegmt=True) if kind == "date" else "1"
                    writer.write(http(429, chat(lie), f"Retry-After: {after}\r\n"))
                    held_from = time.time()
                    return True
                kind = "503"
            writer.write(trouble(kind, lie, KEY))
            return kind not in ("cut", "drop", "half head", "chunks")
        if n % 4 == 1:
            writer.write(trouble(WRONG[n // 4 % len(WRONG)], lie, KEY))
            return False
        if n % 40 == 2:
            writer.write(http(200, chat(lie))[:-30])  # and silence
            await writer.drain()
            await asyncio.sleep(30)
            return False
        return await say(writer, truth, n)
    finally:
        stats["now"] -= 1

async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"Content-Length: (\d+)", head)
            body = (await reader.readexactly(int(length[1]))).decode() if length else ""
            if head.startswith("GET"):
                writer.write(http(200, json.dumps(stats)))
                await writer.drain()
            elif "/elsewhere" in head or not await answer(writer, head, body):
                break
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    open(sys.argv[2], "w").write(str(server.sockets[0].getsockname()[1]))
    await asyncio.sleep(1e6)

asyncio.run(main())
