"""A file with all that the steps need, for a machine that has a GPU, NVIDIA's libraries, python3 and bash."""
import glob
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile

from gpu_check.processes import HOME, Refused, loaded, output_of

TOP = "croll-gpu-check"  # the folder in the file; its first member is pack.json
# what a machine brings itself: the kernel's and the compiler's C library, the driver
OF_THE_MACHINE = re.compile(r"linux-vdso|ld-linux|lib(c|m|pthread|dl|rt|util|resolv|nsl|cuda|nvidia-.*)\.so")
OF_NVIDIA = re.compile(r"lib(cudart|cublas|cublasLt|nccl|nvrtc|nvJitLink)\.so")  # in CUDA's toolkit, and in pip's packages of it
# each program has the same kernels: the dictionary is longer than a program. Mode and search are the quick ones
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 64 << 20}]


# ---- the unpacked folder ----

def read_folder():
    """pack.json of the unpacked folder that this script is in; None in a checkout."""
    try:
        pack = json.load(open(f"{HOME}/pack.json"))
        lost = [name for name, (size, _, _) in pack["files"].items() if not os.path.isfile(f"{HOME}/{name}") or os.path.getsize(f"{HOME}/{name}") != size]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{HOME}/pack.json cannot be read ({error}): unpack the file again") from None
    if lost:
        raise Refused(f"{HOME} is not whole: {lost[0]}{f' and {len(lost) - 1} more' if lost[1:] else ''} is missing or of another size; unpack the file again")
    return pack


def link_nvidia(pack):
    """NVIDIA's libraries that were not packed, as links in lib/, where all programs of the folder look first."""
    known = dict(re.findall(r"^\s*(\S+) .*=> (\S+)", output_of("ldconfig", "-p") or output_of("/sbin/ldconfig", "-p"), re.M))
    home = os.environ.get("CUDA_HOME")
    places = [*([f"{home}/lib64"] if home else []), *sorted(glob.glob("/usr/local/cuda*/lib64"), reverse=True), "/usr/lib/x86_64-linux-gnu",
              *(at for path in sys.path if path for at in sorted(glob.glob(f"{path}/nvidia/*/lib")))]
    os.makedirs(f"{HOME}/lib", exist_ok=True)
    for name in pack["of_nvidia"]:
        at = next((path for path in [known.get(name), *(f"{place}/{name}" for place in places)] if path and os.path.exists(path)), None)
        if not at:
            raise Refused(f"nothing was checked, because {name} is neither in ldconfig's list nor in CUDA_HOME/lib64, /usr/local/cuda*/lib64, /usr/lib/x86_64-linux-gnu or "
                          "nvidia/*/lib of python3's packages: install it, or make the file --with-nvidia")
        if os.path.lexists(f"{HOME}/lib/{name}"):
            os.remove(f"{HOME}/lib/{name}")
        os.symlink(os.path.realpath(at), f"{HOME}/lib/{name}")


# ---- what is packed ----

def libraries(paths, is_wanted):
    """What the loader takes for these programs and libraries, by name: all that a machine does not bring itself, and that is wanted."""
    found = {}
    for path in paths:
        for name, at in loaded(path).items():
            if not OF_THE_MACHINE.match(name):
                if not at.startswith("/"):
                    raise Refused(f"nothing was packed: {path} needs {name}, which is not here")
                found[name] = at
    return {name: at for name, at in found.items() if is_wanted(name)}, sorted(name for name in found if not is_wanted(name))


def launcher(name, program):
    """The text of bin/NAME: Open MPI's own folders, and libraries, are those of the unpacked folder."""
    return f"""#!/bin/sh
home=$(cd "$(dirname "$0")/.." && pwd) || exit 1
export LD_LIBRARY_PATH="$home/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export OPAL_PREFIX="$home/mpi" OPAL_BINDIR="$home/bin" OPAL_LIBDIR="$home/lib" OPAL_PKGLIBDIR="$home/mpi/plugins"
export OPAL_DATADIR="$home/mpi/share" OPAL_PKGDATADIR="$home/mpi/share/openmpi" OPAL_SYSCONFDIR="$home/mpi/etc"
export PMIX_PREFIX="$home/mpi" PMIX_LIBDIR="$home/lib" PMIX_PKGLIBDIR="$home/mpi/pmix" HWLOC_PLUGINS_PATH="$home/mpi/pmix"
exec "$home/{program}" "$@"
"""


def files_of_mpi():
    """Open MPI's and Redis' programs, what they read, and plugins without those for hardware of networks; the programs and libraries among them."""
    paths = output_of("ompi_info", "--path", "all")
    folder = {k: (re.search(rf"^\s*{k}: (.*)", paths, re.M) or [None, ""])[1] for k in ("Bindir", "Pkglibdir", "Pkgdatadir")}
    tools = {"mpirun": shutil.which("mpirun"), "orted": f"{folder['Bindir']}/orted", "redis-server": shutil.which("redis-server")}
    if not folder["Pkglibdir"] or not all(t and os.access(t, os.X_OK) for t in tools.values()):
        raise Refused("nothing was packed: ompi_info, mpirun, orted and redis-server have to be here (scripts/setup)")
    files = {"mpi/etc/openmpi-mca-params.conf": b""}
    for name, path in tools.items():
        files[f"mpi/{name}"] = os.path.realpath(path)
        files[f"bin/{name}"] = launcher(name, f"mpi/{name}").encode()
    plugins = {n: f"{folder['Pkglibdir']}/{n}" for n in os.listdir(folder["Pkglibdir"]) if n.endswith(".so")}
    wanted = {n: p for n, p in plugins.items() if not re.search(r"ucx|ofi|psm|usnic|openib|verbs|cuda|monitoring|java|portals|knem|pvfs|slurm|tm\.so|psm2", n)}
    files |= {f"mpi/plugins/{n}": p for n, p in wanted.items()}
    files |= {f"mpi/share/openmpi/{n}": f"{folder['Pkgdatadir']}/{n}" for n in os.listdir(folder["Pkgdatadir"]) if n.endswith(".txt")}
    return files, [*tools.values(), *wanted.values()]


def collect(check, steps, with_nvidia):
    """What is packed: name in the folder, and a path here or the file's bytes; and the names of NVIDIA's libraries that are not."""
    build = f"build/{check.preset}"
    files = {f"{build}/{n}": f"{check.build}/{n}" for n in check.programs(steps)}
    programs = list(files.values())
    names = ["scripts/gpu-check", *(f"scripts/gpu_check/{n}" for n in glob.glob("*.py", root_dir=f"{HOME}/scripts/gpu_check")), "scripts/mpi", "scripts/make_sums",
             "tests/e2e/run.inc", *glob.glob("configs/quickstart/*.yaml", root_dir=HOME), *glob.glob("bench/peers/*", root_dir=HOME)]
    names += [name for step in steps for name in (*step.words(), *step.reads) if name.startswith(("tests/", "bench/"))]
    files |= {n: f"{HOME}/{n}" for n in names if os.path.isfile(f"{HOME}/{n}")}
    if any(s.needs_model for s in steps):
        for at, _, names in os.walk(f"{check.build}/quick_model"):
            files |= {f"{build}/{os.path.relpath(f'{at}/{n}', check.build)}": f"{at}/{n}" for n in names}
    of_mpi, linked = files_of_mpi()
    found, left = libraries([*programs, *linked], lambda name: with_nvidia or not OF_NVIDIA.match(name))
    files |= of_mpi | {f"lib/{name}": os.path.realpath(path) for name, path in found.items()}
    if "libpmix.so.2" in found:  # where Open MPI is linked with a PMIx of its own package
        at = f"{os.path.dirname(os.path.realpath(found['libpmix.so.2']))}/pmix"
        files |= {f"mpi/pmix/{n}": f"{at}/{n}" for n in os.listdir(at) if n.endswith(".so")}
    return files, left


def without_runpath(data):
    """A library that is searched for as its program says: with a RUNPATH of its own (DT_RUNPATH, 29) the program's RPATH does not
    count for what it needs. The entry becomes one that only a program has (DT_DEBUG, 21)."""
    data = bytearray(data)
    headers, = struct.unpack_from("<Q", data, 32)
    size, num = struct.unpack_from("<HH", data, 54)
    for at in range(headers, headers + size * num, size):
        if struct.unpack_from("<I", data, at)[0] == 2:  # PT_DYNAMIC
            begin, num_bytes = struct.unpack_from("<Q", data, at + 8)[0], struct.unpack_from("<Q", data, at + 32)[0]
            for entry in range(begin, begin + num_bytes, 16):
                if struct.unpack_from("<Q", data, entry)[0] == 29:
                    struct.pack_into("<Q", data, entry, 21)
    return bytes(data)


def read_for_pack(name, source, scratch):
    """The bytes of a file; of croll's own programs without what only a debugger reads."""
    if isinstance(source, bytes):
        return source, 0o755 if name.startswith("bin/") else 0o644
    mode = 0o755 if os.access(source, os.X_OK) else 0o644
    if name.startswith("build/") and mode == 0o755 and shutil.which("strip"):
        smaller = f"{scratch}/program"
        if subprocess.run(["strip", "--strip-debug", "-o", smaller, source], stderr=subprocess.DEVNULL).returncode == 0:
            source = smaller
    with open(source, "rb") as f:
        data = f.read()
    return without_runpath(data) if name.startswith("lib/") and data.startswith(b"\x7fELF\x02\x01") else data, mode


def write(check, steps, path, about, with_nvidia):
    sources, left = collect(check, steps, with_nvidia)
    pack = {"gpu_check": 2, "is_sim": check.is_sim, "build": f"build/{check.preset}", "commit": about["commit"], "toolkit": about["toolkit"],
            "steps": [s.name for s in steps], "of_nvidia": left, "files": {}}
    for name, source in sources.items():
        data, mode = read_for_pack(name, source, check.scratch)
        pack["files"][name] = [len(data), hashlib.sha256(data).hexdigest(), mode]

    def add(tar, name, data, mode):
        info = tarfile.TarInfo(f"{TOP}/{name}")
        info.size, info.mode = len(data), mode
        tar.addfile(info, io.BytesIO(data))
    try:
        with lzma.open(f"{path}.part", "wb", filters=XZ) as out, tarfile.open(fileobj=out, mode="w|") as tar:
            add(tar, "pack.json", json.dumps(pack).encode(), 0o644)
            for name, source in sources.items():
                add(tar, name, *read_for_pack(name, source, check.scratch))
        os.replace(f"{path}.part", path)
    except OSError as error:
        raise Refused(f"nothing was packed: {path} cannot be written ({error.strerror or error})") from None
    finally:
        if os.path.exists(f"{path}.part"):
            os.remove(f"{path}.part")
    print(f"gpu-check: {path} has {len(sources)} files, {os.path.getsize(path) / 2**20:.1f} MiB" + (f", without {', '.join(left)}" if left else "") +
          f"; on the machine with the GPU: scripts/gpu-check {os.path.basename(path)}")


# ---- unpacking ----

def unpack_into(tar, folder):
    first = tar.next()
    if not first or first.name != f"{TOP}/pack.json" or not first.isfile() or first.size > 2**24:
        raise Refused("it was not made by gpu-check --pack")
    pack_text = tar.extractfile(first).read()
    files = json.loads(pack_text)["files"]
    needed, free = sum(size for size, _, _ in files.values()) + len(pack_text), shutil.disk_usage(folder).free
    if needed > free:
        raise Refused(f"there is no room: it needs {needed / 2**20:.0f} MiB, {os.path.dirname(folder)} has {free / 2**20:.0f}")
    missing = dict(files)
    while member := tar.next():
        name = member.name.removeprefix(f"{TOP}/")
        if not member.isfile() or name not in missing or os.path.isabs(name) or ".." in name.split("/"):
            raise Refused(f"it has {member.name!r}, which is not in its list")
        size, digest, mode = missing.pop(name)
        os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
        found = hashlib.sha256()
        with tar.extractfile(member) as data, open(f"{folder}/{name}", "wb") as out:
            while block := data.read(2**20):
                found.update(block)
                out.write(block)
        if found.hexdigest() != digest:
            raise Refused(f"{name} is not what was packed")
        os.chmod(f"{folder}/{name}", 0o755 if mode & 0o100 else 0o644)
    if missing:
        raise Refused(f"it ends before {next(iter(missing))}")
    with open(f"{folder}/pack.json", "wb") as out:
        out.write(pack_text)


def unpack(path, to):
    """The folder; whatever is wrong with the file is one sentence, and leaves no folder."""
    folder = os.path.abspath(to or re.sub(r"\.tar\.xz$", "", os.path.basename(path)))
    if os.path.exists(folder):
        raise Refused(f"nothing was unpacked: {folder} is there already; run {folder}/scripts/gpu-check, remove it, or name another one with --to")
    part = f"{folder}.part{os.getpid()}"
    try:
        os.mkdir(part)
        with tarfile.open(path, "r:xz") as tar:
            unpack_into(tar, part)
        os.rename(part, folder)
    except Refused as error:
        raise Refused(f"{path} was not unpacked: {error}") from None
    except OSError as error:  # tarfile's, too
        raise Refused(f"{path} was not unpacked: {error.strerror or error}") from None
    except (tarfile.TarError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{path} was not unpacked: it is not a whole file of gpu-check --pack ({error})") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder
