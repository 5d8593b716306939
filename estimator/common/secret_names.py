"""Recognises secrets among the values of options, variables and entries, by their names and by their form."""

import re
from functools import cache

MASK = "***"
"""Stands for a secret."""

NAME_HINTS = (
    *(
        "token",
        "key",
        "pass",
        "pwd",
        "secret",
        "cred",
        "auth",
        "cookie",
        "session",
        "sig",
        "jwt",
        "otp",
        "sid",
        "bearer",
    ),
    *("webhook", "psk"),
)
"""Every name of a secret holds one of these, in lower case."""
_PASSWORDS = {"password", "passwords", "passwd", "passphrase", "passcode", "pwd"}
_SECRETS = {"secret", "secrets", "credential", "credentials", "authorization", "jwt", "bearer", "webhook", "psk"}
_PERHAPS = {"auth", "authentication", "session", "sessionid", "cookie", "cookies", "sig", "signature", "otp", "sid"}
"""Names whose values may be words as well: ``--auth basic``, ``--session night-run``."""
_MIN_CHARACTERS = 6
_KEY_OWNERS = {
    "api", "access", "secret", "private", "auth", "encryption", "encrypt", "signing", "account", "service", "storage",
    "master", "admin", "license", "licence", "shared", "subscription", "consumer", "client", "session", "ssh", "gpg",
    "wandb", "openai", "anthropic", "claude", "gemini", "google", "gcp", "azure", "aws", "hf", "huggingface", "comet",
    "neptune", "mlflow", "clearml", "kaggle", "ngc", "nvidia", "openrouter", "mistral", "cohere", "groq",
    "deepseek", "fireworks", "replicate", "langchain", "langsmith", "serper", "tavily", "swanlab", "dashscope",
    "modelscope", "sas", "jwt", "hmac", "s3", "minio", "pinecone", "llm",
}  # fmt: skip
"""``x`` of ``x_key`` whose value is a secret; ``text_key`` and ``sort_key`` name columns."""
_TOKEN_OWNERS = {
    "auth", "access", "hub", "hf", "huggingface", "face", "api", "bearer", "refresh", "id", "session", "csrf", "jwt",
    "personal", "bot", "secret", "oauth", "oauth2", "login", "security", "registry", "deploy", "ci", "job", "read",
    "write", "github", "gh", "gitlab", "git", "slack", "telegram", "discord", "wandb", "neptune", "comet", "clearml",
    "kaggle", "ngc", "aws", "azure", "gcp", "google", "npm", "pypi", "replicate", "openai", "ms", "modelscope", "sas",
    "jupyter", "notebook", "lab", "vault", "zenodo", "dvc", "mlflow", "private", "admin", "service", "client",
}  # fmt: skip
"""``x`` of ``x_token`` whose value is a secret, even if it is a word."""
_TEXT_TOKENS = {
    "pad", "padding", "eos", "bos", "unk", "unknown", "mask", "sep", "cls", "image", "img", "video", "audio", "special",
    "stop", "start", "end", "begin", "new", "per", "num", "max", "min", "prompt", "next", "first", "last", "decoder",
    "boi", "eoi", "additional", "extra", "placeholder", "trigger", "virtual", "prefix", "suffix", "query", "doc",
    "document", "reasoning", "tool", "system", "assistant", "instruction", "empty", "blank", "word", "language", "task",
    "target", "label", "loss", "skip", "drop", "keep", "vision", "response", "completion", "speech", "eot", "eom",
    "separator", "delimiter", "initializer", "class", "quality", "time", "by", "to", "each", "single", "any", "is",
    "think", "sot", "n",
}  # fmt: skip
"""``x`` of ``x_token`` that is a token of a text."""
_PASS_OWNERS = {
    "db",
    "user",
    "smtp",
    "mysql",
    "pg",
    "postgres",
    "redis",
    "admin",
    "root",
    "ssh",
    "proxy",
    "http",
    "ftp",
}
_ENDINGS = ("password", "passwd", "passphrase", "secret", "tokens", "token", "keys", "key", "pass")
_ENDINGS_OF_WORDS = {"keys": _KEY_OWNERS, "key": _KEY_OWNERS, "pass": _PASS_OWNERS}
"""Endings that other words have too (``monkey``, ``bypass``), with what may stand before them."""
_IGNORED_ENDINGS = {"value", "string", "str", "plain", "plaintext", "text"}
_PLAIN_VALUES = {
    "true", "false", "none", "null", "nil", "yes", "no", "on", "off", "auto", "default", "unset", "required", "nan",
    "optional", "disabled", "enabled", "redacted", "undefined", "empty", "...",
    "str", "int", "float", "bool", "bytes", "string",
}  # fmt: skip
_WORDS = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*|\d+|[A-Z]+\d*"
_JUPYTER_OPTION = r"[\w\-.]*(?:App|Provider|Hub|Spawner)\.token"
"""``ServerApp.token``: Jupyter's options, whose values are secrets even if they are numbers."""
_LAST_PART = r"(?i)[./:]token$"
_NUMBER = r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?"
_REFERENCE = (
    r"(?s)\$\{?[A-Z_][A-Z0-9_]*\}?|\$[({].*|<[^<>]{0,40}>|\[/?[A-Za-z_]{1,16}\]|\{\{?.*\}\}?|%\(.*\)s|\*+|%[A-Z_]+%"
)
"""A value that is a variable, a placeholder or a token of a text."""
_PATH = r"(?:/|\./|\.\./|~/|file:)[\w./~@%\-]*(?:/[\w.~@%\-]+|\.\w+)"
_WORD = r"[A-Za-z][A-Za-z_\-]{0,19}"
_RANDOM = r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{16,}|\A[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z"


def is_secret(name: str, value: str) -> bool:
    """Return True if the value of something with this name is a secret that must not be shown."""
    words = _words(name)
    value = value.strip().strip("\"'`,")
    if not words or not value or value.lower() in _PLAIN_VALUES or compiled(_REFERENCE).fullmatch(value):
        return False
    last, owner = words[-1], words[-2] if len(words) > 1 else ""
    is_number, is_path = compiled(_NUMBER).fullmatch(value), compiled(_PATH).fullmatch(value)
    if last in _PASSWORDS or (last == "pass" and (owner in _PASS_OWNERS or not owner)):
        return not (is_number and len(value) < 4) and not (last in ("pwd", "pass") and is_path)
    if compiled(_JUPYTER_OPTION).fullmatch(name):
        return True
    if is_path or (is_number and (len(value) < 12 or not value.isdecimal())):
        return False
    if last in _SECRETS:
        return True
    if words[-2:] == ["key", "id"] and len(words) > 2:
        last, owner = "key", words[-3]
    if last in ("key", "keys"):
        return owner in _KEY_OWNERS or bool(compiled(_RANDOM).search(value))
    if last in ("token", "tokens"):
        if compiled(_LAST_PART).search(name) and owner not in _TEXT_TOKENS:
            owner = ""
        return _is_secret_token(owner, value, plural=last == "tokens")
    return last in _PERHAPS and len(value) >= _MIN_CHARACTERS and not compiled(_WORD).fullmatch(value)


def _is_secret_token(owner: str, value: str, *, plural: bool) -> bool:
    if owner in _TEXT_TOKENS:
        return False
    if owner in _TOKEN_OWNERS:
        return True
    if plural:
        return bool(compiled(_RANDOM).search(value))
    return not owner or not compiled(_WORD).fullmatch(value)


def _words(name: str) -> list[str]:
    """Return the words of a name: ``--hub-token``, ``HUB_TOKEN``, ``hubToken`` and ``hubtoken`` have the same."""
    words = [word.lower() for word in compiled(_WORDS).findall(name)]
    while len(words) > 1 and (words[-1] in _IGNORED_ENDINGS or words[-1].isdecimal()):
        words.pop()
    last = words[-1].rstrip("0123456789") if words else ""
    for ending in _ENDINGS:
        owner = last.removesuffix(ending)
        if owner not in ("", last) and owner in _ENDINGS_OF_WORDS.get(ending, (owner,)):
            return [*words[:-1], owner, ending]
    return [*words[:-1], last] if last else words


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern when it is first needed: most command lines need none."""
    return re.compile(pattern)
