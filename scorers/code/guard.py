"""guard.py -- what the process of the tests runs of texts and pickles, which may be the solution's.

A test may evaluate what a function gave: eval(repr(x)), eval(derivative("x**2")), pickle.loads(dump(x)). A text that is not of the test's
own code is an expression of data there, and a pickle has classes of data; anything else is refused.
"""
import functools
CALLED = set(("abs all any bool bytes bytearray chr complex dict divmod enumerate filter float frozenset hex int iter len list map max min next oct "
              "ord pow range repr reversed round set slice sorted str sum tuple zip isinstance issubclass").split()) | set(EXCEPTIONS)
OF_DATA = "math cmath fractions decimal datetime collections statistics".split()
FRAMES = r"_.*|format|format_map|(gi|cr|ag|tb|co)_.*|f_(back|builtins|code|globals|locals)"  # attributes that lead out of data
NODES = (ast.Expression, ast.Module, ast.Expr, ast.Assert, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Starred, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator,
         ast.BoolOp, ast.boolop, ast.Compare, ast.cmpop, ast.IfExp, ast.Subscript, ast.Slice, ast.Name, ast.expr_context, ast.Attribute, ast.Call, ast.keyword, ast.Lambda,
         ast.arguments, ast.arg, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.JoinedStr, ast.FormattedValue)
PICKLED = {"_codecs": ["encode"], "copyreg": ["_reconstructor", "__newobj__"], "numpy": ["ndarray", "dtype"], "numpy.core.multiarray": ["_reconstruct", "scalar"],
           "numpy._core.multiarray": ["_reconstruct", "scalar"]}
# Libraries that evaluate texts which they are given.
EVALUATING = "typing annotationlib inspect timeit doctest".split()


class Refused(LookupError):
    """A test would run what may be the solution's."""


def is_of_data(value):
    """A value that an expression may name: the solution's, or what makes data."""
    return isinstance(value, (Remote, RemoteClass)) or (value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)) in OF_DATA


def may_name(name, frame, words):
    """words: of the texts in the test's code, which may be about its variables."""
    if name in frame.f_locals or name in frame.f_globals:
        value = frame.f_locals.get(name, frame.f_globals.get(name))
        return is_of_data(value) or name in words and type(value) in SCALARS + PLAIN
    return name in CALLED or not hasattr(builtins, name)


def may_read(x, frame):
    """An attribute: of a module only what makes data."""
    owner = frame.f_locals.get(x.value.id, frame.f_globals.get(x.value.id)) if isinstance(x.value, ast.Name) else None
    if isinstance(owner, types.ModuleType):
        found = getattr(owner, x.attr, None)
        return is_of_data(found) and not isinstance(found, types.ModuleType)
    return not re_module.fullmatch(FRAMES, x.attr)


def is_expression(text, frame, words, has_calls):
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True  # it says so itself
    return all(isinstance(x, NODES) and (has_calls or not isinstance(x, (ast.Call, ast.Lambda))) and
               not (isinstance(x, ast.Attribute) and (re_module.fullmatch(FRAMES, x.attr) or has_calls and not may_read(x, frame))) and
               not (isinstance(x, ast.Name) and (x.id.startswith("_") or has_calls and not may_name(x.id, frame, words))) for x in nodes)


def is_pickled(module, name):
    """A class of data that a pickle cannot change, too."""
    if module in PICKLED:
        return name in PICKLED[module]
    found = getattr(sys.modules.get(module), name, None)
    is_fixed = isinstance(found, type) and (not found.__flags__ & 1 << 9 or bool(found.__flags__ & 1 << 8))  # no class of Python
    return isinstance(found, RemoteClass) or is_fixed and (module in OF_DATA or module == "builtins" and name in CALLED | {"object"})


@functools.lru_cache(None)
def texts_of(code):
    """Lines of the texts in a test, and their words, which may be about its variables."""
    texts = [x.value for x in ast.walk(ast.parse(code)) if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    return {line.strip() for t in texts for line in t.splitlines()}, {w for t in texts for w in re_module.findall(r"\w+", t)}


def guard(own):
    """From now on. own: the test's code without what the solution wrote."""
    evaluating = {getattr(sys.modules.get(m), "__file__", m) for m in EVALUATING}

    def hook(event, args):
        if event == "compile":
            text, frame = args[0], sys._getframe(1)
            file = frame.f_code.co_filename
            if text is None or file not in ("tests.py", "<string>") and file not in evaluating:
                return
            if isinstance(text, ast.AST):
                text = ast.unparse(text)
            text = text if isinstance(text, str) else bytes(text).decode("utf-8", "replace")
            lines, words = texts_of(own)
            if not lines.issuperset(line.strip() for line in text.splitlines()) and not is_expression(text, frame, words, file not in evaluating):
                raise Refused("the test evaluates a text that may be the solution's: %.60r" % text)
        elif event == "pickle.find_class" and not is_pickled(*args) and "multiprocessing" not in sys._getframe(1).f_code.co_filename:
            raise Refused("the test unpickles what may be the solution's: %s.%s" % args)

    sys.addaudithook(hook)
