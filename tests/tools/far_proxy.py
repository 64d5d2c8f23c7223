#!/usr/bin/env python3
"""far_proxy.py PORT TO_PORT SECONDS [TEXT] -- a TCP proxy on this host that delivers every byte SECONDS late, both ways. With TEXT it
writes a line for each piece that came from a client at once with TEXT in it: how often TEXT is there."""
import asyncio
import sys

PORT, TO_PORT, DELAY_S = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
TEXT = sys.argv[4].encode() if len(sys.argv) > 4 else b""


async def read_late(reader, queue, text=b""):
    data = b"-"
    while data:
        try:
            data = await reader.read(1 << 16)
        except OSError:
            data = b""
        if text and text in data:
            print(data.count(text), flush=True)
        await queue.put((asyncio.get_running_loop().time() + DELAY_S, data))


async def write_late(queue, writer):
    while True:
        due, data = await queue.get()
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        if not data:
            writer.close()
            return
        writer.write(data)


async def serve(reader, writer):
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", TO_PORT)
    there, back = asyncio.Queue(), asyncio.Queue()
    await asyncio.gather(read_late(reader, there, TEXT), write_late(there, far_writer), read_late(far_reader, back),
                         write_late(back, writer))


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", PORT)
    await server.serve_forever()


asyncio.run(main())
