#!/usr/bin/env python3
"""Functions of a Python file as the reward program of croll (functions.py beside this is such a file):

    exec: python3 run_functions.py my_rewards.py                      # the function `reward`
    exec: python3 run_functions.py my_rewards.py accuracy brief=0.2   # reward = 1 * accuracy + 0.2 * brief
    max_in_flight: 64

A plain function runs in a thread, a coroutine in the event loop; one with a parameter `responses` gets lists of all lines that
came while it was busy. Of several the score is the first one's; each is a metric. One that returns None has nothing to say of the
sample. An exception is status "error", with the last line of its traceback. The time-out is croll's (reward_timeout), which starts
this program again when it hangs."""
import argparse, asyncio, concurrent.futures, importlib.util, inspect, json, math, os, sys, traceback


def failed(error):
    return {"status": "error", "detail": traceback.format_exception_only(error)[-1].strip()}


class Function:
    def __init__(self, module, text):
        self.name, _, weight = text.partition("=")
        if not callable(getattr(module, self.name, None)):
            sys.exit(f"{module.__file__} has no function {self.name}")
        self.weight, self.function, self.waiting, self.work = float(weight or 1), getattr(module, self.name), [], None
        parameters = list(inspect.signature(self.function).parameters.values())
        self.names = {p.name for p in parameters}
        self.needed = {p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self.takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters)

    async def call(self, values, num):  # a list of num results
        values = {name: value for name, value in values.items() if self.takes_all or name in self.names}

        def take(results):
            results = list(results) if "responses" in self.names else [results]
            if len(results) != num:
                raise ValueError(f"{self.name} gave {len(results)} scores for {num} responses")
            return results

        def run():  # an exception that leaves a thread or a task, as SystemExit, would end the loop
            try:
                return take(self.function(**values))
            except BaseException as error:
                return [failed(error)] * num

        if not inspect.iscoroutinefunction(self.function):
            return await asyncio.to_thread(run)
        try:
            return take(await self.function(**values))
        except BaseException as error:
            return [failed(error)] * num

    async def call_batches(self):
        while self.waiting:
            (rows, futures), self.waiting = zip(*self.waiting), []
            columns = {name: [row.get(name) for row in rows] for name in set().union(*rows)}
            columns.update(prompts=columns["prompt"], responses=columns["response"], rows=rows)
            for future, result in zip(futures, await self.call(columns, len(rows))):
                future.set_result(result)
        self.work = None

    async def score(self, row):  # a dictionary or None
        if "responses" in self.names:
            self.waiting.append((row, future := asyncio.get_running_loop().create_future()))
            self.work = self.work or asyncio.create_task(self.call_batches())
            result = await future
        else:
            [result] = await self.call({**row, "row": row}, 1)
        if result is None or (isinstance(result, dict) and result.get("status", "ok") != "ok"):
            return result
        result = dict(result) if isinstance(result, dict) else {"score": result}
        for key in ["score"] + ["reward"] * ("reward" in result):
            result[key] = float(result[key])
            if not math.isfinite(result[key]):
                raise ValueError(f"{self.name} gave the {key} {result[key]}")
        return result


async def verdict(functions, row):
    row.setdefault("prompt", row.get("messages"))
    if row.get("probe"):  # before a run begins: what no row will have ends it there
        for f in functions:
            if lacking := f.needed - set(row) - {"row", "rows", "prompts", "responses"}:
                os.write(2, f"{f.name} asks for {', '.join(sorted(lacking))}; a row has {', '.join(row)}\n".encode())
                os._exit(1)
    results = await asyncio.gather(*(f.score(row) for f in functions))
    for result in results:
        if result and result.get("status", "ok") != "ok":
            return result
    if results[0] is None:
        return {"status": "abstain"}
    if len(functions) == 1:
        return results[0]
    scores = {f: r["score"] for f, r in zip(functions, results) if r}
    metrics = {f.name: score for f, score in scores.items()}
    return {**results[0], "reward": sum(f.weight * score for f, score in scores.items()), "metrics": metrics}


async def answer(functions, line, answers):
    row = json.loads(line)
    try:
        text = json.dumps({"id": row["id"], **await verdict(functions, row)}, ensure_ascii=False, allow_nan=False, default=float)
    except Exception as error:
        text = json.dumps({"id": row["id"], **failed(error)})
    answers.write(text + "\n")
    answers.flush()


async def main(functions, lines, answers, max_in_flight):
    asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(max_in_flight * len(functions) + 1))
    tasks = set()
    while line := await asyncio.to_thread(lines.readline):
        tasks.add(asyncio.create_task(answer(functions, line, answers)))
        if len(tasks) >= max_in_flight:
            _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*tasks)
    os._exit(0)  # whatever a thread still does


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a Python file")
    parser.add_argument("functions", nargs="*", default=["reward"], metavar="NAME[=WEIGHT]")
    parser.add_argument("--max-in-flight", type=int, default=64, metavar="N", help="lines at once (default 64)")
    args = parser.parse_args()
    lines, answers = (os.fdopen(os.dup(fd), mode, encoding="utf-8", errors="replace") for fd, mode in ((0, "r"), (1, "w")))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what a function reads is empty,
    os.dup2(2, 1)  # and what it prints goes to stderr
    sys.stdout = sys.stderr
    sys.path.insert(0, os.path.dirname(os.path.abspath(args.file)))
    spec = importlib.util.spec_from_file_location("rewards", args.file)
    try:
        spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
        functions = [Function(module, text) for text in args.functions]
    except Exception as error:  # croll shows the end of it
        where = traceback.extract_tb(error.__traceback__)[-1]
        sys.exit(f"{where.filename}:{where.lineno}: " + "".join(traceback.format_exception_only(error)).strip())
    asyncio.run(main(functions, lines, answers, args.max_in_flight))
