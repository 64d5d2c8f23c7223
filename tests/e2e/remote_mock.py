# remote_mock.py KEY PORT_FILE: a reward service as docs/rewards.md describes it. The reward of a sample is the rule's, after a few
# answers that it is not there yet; one in eight ways goes wrong. GET /v1/seen: what was submitted.
import re, sys, threading
from mock_service import Handler, Server

KEY, lock, tasks, seen = sys.argv[1], threading.Lock(), {}, {}

class Remote(Handler):
    def fine(self):
        if self.headers.get("Authorization") == f"Bearer {KEY}": return True
        self.answer(401, {"error": f"not with {self.headers.get('Authorization')}"})
    def do_POST(self):
        body = self.read()
        if not self.fine(): return
        if self.path != "/v1/submit": return self.answer(404, {"error": "no such path"})
        with lock:
            again = body["rollout_id"] in tasks if "rollout_id" in body else False
            task = tasks.setdefault(body.get("rollout_id", "probe"), [len(tasks), 0, body])
        seen[body.get("rollout_id", "probe")] = body
        if task[0] % 8 == 1 and not again: # a service that took it and said nothing
            self.close_connection = True
            return
        if task[0] % 8 == 2: return self.answer(200, self.result(body)) # at once
        self.answer(200, {"task_id": body.get("rollout_id", "probe")})
    def result(self, body):
        numbers = re.findall(r"-?[0-9]+", body["response"])
        right = bool(numbers) and numbers[-1] == body["reward_info"]["ground_truth"]
        return {"status": "ok", "score": int(right), "reward": 1.5 if right else -0.5, "detail": "seen"}
    def do_GET(self):
        if self.path == "/v1/seen": return self.answer(200, seen)
        if not self.fine(): return
        name = self.path.split("/")[-1]
        if name not in tasks or not self.path.startswith("/v1/result/"): return self.answer(404, {"error": "no such task"})
        task = tasks[name]
        task[1] += 1
        if task[1] <= task[0] % 3: return self.answer(200, {"status": ("pending", "running")[task[1] % 2]})
        way = task[0] % 8
        if way == 3: return self.answer(200, {"status": "error", "score": 1, "detail": "the grader is down"})
        if way == 4 and task[1] < 4: return self.answer(503, {"error": "busy"})
        if way == 5: return self.answer(200, None, '{"status":"ok","score":1')
        if way == 6 and task[0] % 16 == 6: return self.answer(410, {"error": "gone"})
        self.answer(200, self.result(task[2]))

server = Server(Remote)
open(sys.argv[2], "w").write(str(server.server_port))
server.serve_forever()
