"""A folder's model.safetensors as {name: (dtype, shape, bytes)}, read and written. For scripts of these tests: sys.path.insert(0, "tests/e2e")."""
import json
import struct


def read(folder):
    data = open(folder + "/model.safetensors", "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]) for k, t in header.items()}


def write(folder, tensors):
    header, at = {}, 0
    for k, (dtype, shape, data) in tensors.items():
        header[k] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(folder + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))
