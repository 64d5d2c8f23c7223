# mock_service.py -- what the mock services of the tests share: a handler of JSON, and a server with a thread a connection.
# A program elsewhere: PYTHONPATH=tests/e2e.
import http.server, json

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def read(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))
    def answer(self, status, body, text=None): # text: instead of a body
        data = (json.dumps(body) if text is None else text).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    def __init__(self, handler, port=0):
        super().__init__(("127.0.0.1", port), handler)
