"""Secrets on command lines (tokens, keys, passwords), masked wherever a command line is displayed, printed or stored.

A value is masked for the name of its option, variable or entry (``--hub_token x``, ``API_KEY=x``, ``"password": "x"``,
``hf_token: x``), or for its own form (``hf_...``, a URL with a password), or for the program it is given to (``mysql
-px``). What only sounds like a secret stays: ``--pad_token "<pad>"``, ``--max_tokens 512``, ``--use_auth_token True``,
paths, references such as ``$HF_TOKEN``.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial

MASK = "***"
"""Stands for a secret."""

_NAME_HINTS = (
    "token", "key", "pass", "pwd", "secret", "cred", "auth", "cookie", "session", "sig", "jwt", "otp", "sid", "bearer",
    "webhook", "psk",
)  # fmt: skip
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
_TEXT_TOKENS = {
    "pad", "padding", "eos", "bos", "unk", "unknown", "mask", "sep", "cls", "image", "img", "video", "audio", "special",
    "stop", "start", "end", "begin", "new", "per", "num", "max", "min", "prompt", "next", "first", "last", "decoder",
    "boi", "eoi", "additional", "extra", "placeholder", "trigger", "virtual", "prefix", "suffix", "query", "doc",
    "document", "reasoning", "tool", "system", "assistant", "instruction", "empty", "blank", "word", "language", "task",
    "target", "label", "loss", "skip", "drop", "keep", "vision", "response", "completion", "speech", "eot", "eom",
    "separator", "delimiter", "initializer", "class", "quality", "time", "by", "to", "each", "single", "any", "is",
    "think", "sot", "n", "total", "prefill", "batched", "input", "output", "generated", "draft",
}  # fmt: skip
"""``x`` of ``x_token`` that is a token of a text."""
_PASS_OWNERS = {
    "db", "user", "smtp", "mysql", "pg", "postgres", "redis", "admin", "root", "ssh", "proxy", "http", "ftp",
}  # fmt: skip
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
        if last == "tokens" and not owner:
            return bool(compiled(_RANDOM).search(value))
        return owner not in _TEXT_TOKENS
    return last in _PERHAPS and len(value) >= _MIN_CHARACTERS and not compiled(_WORD).fullmatch(value)


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


_NAME = r"[A-Za-z_][\w.\-]*"
_QUOTE = r"\\{0,7}[\"']"
"""A quote, also one within a quoted text: JSON in JSON."""
_QUOTED = (
    r"\"[^\"\\]*(?:\\(?s:.)[^\"\\]*)*(?:\"|\\?\Z)|'[^'\\]*(?:\\(?s:.)[^'\\]*)*(?:'|\\?\Z)"
    r"|(?P<escaped>\\{1,7}[\"'])(?:(?!(?P=escaped))(?s:.))*(?:(?P=escaped)|\Z)"
)
"""A quoted text, which may have been cut."""
_NO_WORD = r"(?![A-Za-z][A-Za-z_\-]{0,19}(?![^\s,.;)]))"
_ENTRY_VALUE = rf"{_QUOTED}|\$\{{[^}}]*\}}|[^\s,;\"'{{}}\[\]\\]+"
_FORMS = (
    r"(?:hf|api_org|hf_oauth|hf_jwt)_[A-Za-z0-9]{20,}",  # Hugging Face
    r"sk-(?:ant|proj|or|svcacct|admin|lf)-[\w\-]{8,}|sk-(?:[a-z0-9]{1,12}-){0,3}[A-Za-z0-9_]{16,}[\w\-]*",
    r"gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|gl(?:pat|rt|dt|ptt|soat|ft|cbt|imt|agent)-[\w\-.]{12,}",
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}",  # Amazon
    r"xox[a-z]-[\w\-]{8,}|xapp-[\w\-]{8,}",  # Slack
    r"AIza[\w\-]{20,}|ya29\.[\w\-.]{8,}|GOCSPX-[\w\-]{16,}",  # Google
    r"eyJ[\w\-]{6,}\.[\w\-]{4,}(?:\.[\w\-]*)*",  # a JSON web token
    r"npm_[A-Za-z0-9]{20,}|pypi-[\w\-]{16,}|nvapi-[\w\-]{16,}|r8_[A-Za-z0-9]{16,}|gsk_[A-Za-z0-9]{20,}",
    r"(?:bot)?\d{6,12}:AA[\w\-]{30,}",  # Telegram
    r"wandb_v1_\w{16,}|local-[0-9a-f]{40}|dapi[0-9a-f]{32}\w*|xai-[A-Za-z0-9]{20,}|pplx-[A-Za-z0-9]{20,}|hv[sb]\.[\w\-]{16,}",
    r"dckr_pat_[\w\-]{16,}|tskey-[\w\-]{12,}|dop_v1_[0-9a-f]{32,}|shpat_[0-9a-f]{16,}|lsv2_(?:pt|sk)_\w{16,}",
    r"SG\.[\w\-]{12,}\.[\w\-]{12,}|(?:sk|rk)_(?:live|test)_\w{12,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}",
    r"lin_api_\w{16,}|ntn_[A-Za-z0-9]{30,}|secret_[A-Za-z0-9]{40,}|figd_[\w\-]{20,}|pat-[a-z]{2}\d-[0-9a-f\-]{36}",
    r"sntry[su]_[\w+/=]{30,}|glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}|key-[0-9a-f]{32}|tvly-(?=\S*\d)[A-Za-z0-9\-]{16,}",
    r"jina_[A-Za-z0-9]{40,}|e2b_[0-9a-f]{32,}|pcsk_\w{30,}|sbp_[0-9a-f]{32,}|fw_(?=\w*\d)[A-Za-z0-9]{20,}",
    r"cfut_\w{30,}|PMAK-[0-9A-Za-z]{20,}-[0-9A-Za-z]{30,}|dp\.(?:st|pt|sa|ct)\.[\w.\-]{20,}",
)
"""Secrets that are known by their form, whatever names them."""
_FORM_HINTS = (
    "hf_", "api_org_", "sk-", "sk_", "rk_", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "glrt-",
    "gldt-", "glptt-", "glsoat-", "glft-", "glcbt-", "glimt-", "glagent-", "akia", "asia", "abia", "acca", "xox",
    "xapp-", "aiza", "ya29.", "gocspx-", "eyj", "npm_", "pypi-", "nvapi-", "r8_", "gsk_", "wandb_v1_", "local-", "dapi",
    "xai-", "pplx-", "hvs.", "hvb.", "dckr_pat_", "tskey-", "dop_v1_", "shpat_", "lsv2_", "sg.", "age-secret-key-",
    ":aa", "lin_api_", "ntn_", "secret_", "figd_", "pat-", "sntry", "glsa_", "key-", "tvly-", "jina_", "e2b_", "pcsk_",
    "sbp_", "fw_", "cfut_", "pmak-", "dp.",
)  # fmt: skip
_PLURALS = ("keys", "tokens", "secrets", "passwords")
_BETWEEN = "\x1f"
"""Stands between the arguments of a line; for patterns it is a blank."""
_USER_OPTIONS = ("-u", "--user", "--proxy-user", "--userpwd")
_COMMAND_OPTIONS = {"-c", "-lc", "-ic", "-cl", "--command", "--wrap"}
"""Options whose value is a command line of its own."""

_Replacement = str | Callable[[re.Match[str]], str]
_shown = [False]


def show_secrets() -> None:
    """Leave secrets in what is displayed and printed from now on (``--show-secrets``); never in what is stored."""
    _shown[0] = True


def displayed(text: str) -> str:
    """Return a text as it may be displayed: with masked secrets, unless the user asked to see them."""
    return text if _shown[0] else mask_line(text)


def displayed_data(value: object) -> object:
    """Return plain data (of JSON) as it may be printed."""
    return value if _shown[0] else mask_strings(value)


def displayed_arguments(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments of a command line as they may be displayed."""
    return arguments if _shown[0] else mask_arguments(arguments)


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line with masked secrets.

    Arguments that only together are a secret become one: ``hf_token: x`` without quotes are two.
    """
    masked = _mask_each(arguments)
    line = _BETWEEN.join(masked)
    shown = mask_line(line)
    return masked if shown == line else shown.split(_BETWEEN)


def _mask_each(arguments: Sequence[str]) -> list[str]:
    if not _may_hold_secrets(" ".join(arguments)):
        return list(arguments)
    masked: list[str] = []
    name, before = "", ""
    for argument in arguments:
        option, assignment = compiled(_OPTION).fullmatch(argument), compiled(_ASSIGNED).fullmatch(argument)
        if name and option is None and is_secret(name, argument):
            masked.append(MASK)
        elif assignment and before not in _COMMAND_OPTIONS and is_secret(assignment[1], assignment[2]):
            masked.append(f"{assignment[1]}={MASK}")
        elif before == "login" or before in _USER_OPTIONS:
            masked.append(mask_line(f" {before} {argument}")[len(before) + 2 :])
        else:
            masked.append(mask_line(argument))
        if option:
            name = option[1]
        elif not name.lower().endswith(_PLURALS):  # --api_keys takes several values
            name = ""
        before = argument
    return _mask_programs(_BETWEEN.join(masked)).split(_BETWEEN)


@lru_cache(maxsize=4096)
def mask_line(text: str) -> str:
    """Return a line (a command line, or a sentence that quotes one) with masked secrets; masking twice is masking."""
    if not _may_hold_secrets(text):
        return text
    lower = text.lower()
    for hints, pattern, replacement in _RULES:
        if any(hint in lower for hint in hints):
            text = compiled(pattern).sub(replacement, text)
    if any(hint in lower for hint in _NAME_HINTS):
        for pattern in _NAMED:
            text = _mask_named(pattern, text)
    return _mask_programs(text)


def mask_strings(value: object) -> object:
    """Return plain data (of JSON) with masked secrets in all of its texts."""
    if isinstance(value, str):
        return mask_line(value)
    if isinstance(value, dict):
        return {key: _mask_entry(str(key), each) for key, each in value.items()}
    if not isinstance(value, list | tuple):
        return value
    if all(isinstance(each, str) for each in value):
        return _mask_each(value)  # it may be a command line
    return [mask_strings(each) for each in value]


def _mask_entry(name: str, value: object) -> object:
    if isinstance(value, list | tuple):
        return mask_strings([_mask_entry(name, each) if isinstance(each, str) else each for each in value])
    return MASK if isinstance(value, str) and is_secret(name, value) else mask_strings(value)


def _may_hold_secrets(text: str) -> bool:
    """Return False for most command lines, in a fraction of the time that the rules take."""
    lower = text.lower()
    return any(hint in lower for hint in _ALL_HINTS)


def _mask_named(pattern: str, text: str) -> str:
    """Mask secrets by the names before them; in a value that is none, as in ``-c "TOKEN=x ..."``, others may stand."""
    parts: list[str] = []
    at = 0
    while found := compiled(pattern).search(text, at):
        value = found["value"]
        if found["part"] and not compiled(_QUOTE).match(value):  # a part of a URL's query or of a list
            value = compiled(_END_OF_PART).split(value, maxsplit=1)[0]
        masked = _mask_value(found["name"], value)
        start = end = found.start("value")
        if masked != value:
            end += len(value)
            if len(value) == _MAX_DECIDING and not compiled(_QUOTE).match(value):
                rest = compiled(_REST_OF_PART if found["part"] else r"\S*").match(text, end)
                end = rest.end() if rest else end
        parts += [text[at:start], masked if masked != value else ""]
        at = end
    return "".join([*parts, text[at:]])


def _mask_programs(line: str) -> str:
    """Return a line with the values masked that only their program makes secrets, as in ``mysql -pX``."""
    lower = line.lower()
    for hint, program, option in _PROGRAMS:
        if hint in lower:
            line = compiled(rf"((?<![\w.\-])(?:{program}))({_ARGUMENTS})").sub(partial(_mask_option, option), line)
    return line


def _mask_option(option: str, found: re.Match[str]) -> str:
    value = rf"[^{_BETWEEN}]+" if found[2].startswith(_BETWEEN) else _ARGUMENT
    return found[1] + compiled(rf"((?<!\S){option})(?![\"']?\$)(?:{value})").sub(rf"\1{MASK}", found[2])


def _mask_value(name: str, value: str) -> str:
    opening = compiled(_QUOTE).match(value)
    quote = opening[0] if opening else ""
    inner = value.removeprefix(quote)
    closing = quote if quote and inner.endswith(quote) else ""
    return f"{quote}{MASK}{closing}" if is_secret(name, inner.removesuffix(closing)) else value


def _mask_list(found: re.Match[str]) -> str:
    words = compiled(r"(\s+)").split(found[2])
    return found[1] + "".join(MASK if is_secret(found[1], word) else word for word in words)


def _mask_user_info(found: re.Match[str]) -> str:
    user, colon, password = found[2].partition(":")
    if colon and password:
        return f"{found[1]}{user}:{MASK}@"
    return f"{found[1]}{MASK}@" if compiled(_LONG_USER).fullmatch(user) else found[0]


_OPTION = rf"--?({_NAME})"
_ASSIGNED = rf"(-{{0,2}}[+~]*{_NAME})=((?s:.+))"
_HEADER = r"(?:(?:proxy-)?authorization|(?:set-)?cookie|x-api-key|api-key|private-token|x-[\w\-]*token)"
_END_OF_PART = r"[&;,\"')\]}\s]|%26"
_REST_OF_PART = r"(?:(?!%26)[^&;,\"')\]}\s])*"
_MAX_DECIDING = 256
"""Characters of a value that decide whether it is a secret: in ``a=a=a=...`` each value holds all that follow."""
_LONG_USER = r"(?=\S*\d)[\w\-.~%]{20,}"
_RULES: tuple[tuple[tuple[str, ...], str, _Replacement], ...] = (
    (("://",), r"(?i)(?<![\w+.\-])([a-z][a-z0-9+.\-]*://)([^/\s\"'<>]+)@", _mask_user_info),
    (("private key",), r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", MASK),
    (_FORM_HINTS, rf"(?<![A-Za-z0-9_])(?:{'|'.join(_FORMS)})(?![A-Za-z0-9])", MASK),
    (
        ("hook", "/with/key/", "/integration/", "hc-ping.com/"),
        r"(?i)((?:https?://[^\s\"'<>]{0,200}?(?:hooks?|webhooks?|webhookb2|with/key|integration|hc-ping\.com)"
        r"|hooks\.slack\.com/services|/api/webhooks)/)(?=[^\s\"'<>?#]{0,99}\d)[^\s\"'<>?#*]{16,}",
        rf"\1{MASK}",
    ),
    (
        ("authorization", "cookie", "-key", "-token"),
        rf"(?i)((?:\A|[\"'])\s*{_HEADER}\s*:\s*)[^\"'\s][^\"'\n]*",
        rf"\1{MASK}",
    ),
    (
        ("authorization", "cookie", "-key", "-token"),
        rf"(?i)(?<![\w/\-])({_HEADER}(?:\s*:\s*|=(?=(?:bearer|basic|token)\s)))(?:[A-Z][\w\-]*\s+(?!-|[a-z]+://))?[^\s\"'](?:[^\s\"';]|;\s*\w+=|;)*",
        rf"\1{MASK}",
    ),
    (("bearer",), r"(?i)\b(bearer\s+)(?:(?=[\w.~+/=\-]*\d)[\w.~+/=\-]{8,}|[\w.~+/=\-]{20,})", rf"\1{MASK}"),
    (
        ("-u", "--user", "--proxy-user"),
        rf"(?<![\w\-])({'|'.join(_USER_OPTIONS)})([\s=]+)([^\s:/\"']+):(?!\d+(?!\S))[^\s/]\S*",
        rf"\1\2\3:{MASK}",
    ),
    (("machine",), r"(\bmachine\s+\S+\s+login\s+\S+\s+password\s+)\S+", rf"\1{MASK}"),  # .netrc
    (("login",), r"(\blogin\s+(?:--relogin\s+)?)[0-9a-f]{40}\b", rf"\1{MASK}"),  # wandb's
    (
        _PLURALS,
        rf"(?<![\w\-])(--?{_NAME}(?<=keys|kens|rets|ords)\s+)((?:(?!--?[A-Za-z])[^\s\"']+(?:\s+|$)){{2,}})",
        _mask_list,
    ),
)
"""Rules: words that a text must contain (in lower case) for the rule to apply, its pattern, and the replacement."""
_ARGUMENTS = rf"(?:{_BETWEEN}(?![|;&]+{_BETWEEN})[^{_BETWEEN}]*)+|\s(?:\"[^\"]*\"|'[^']*'|[^|;&])*"
_ARGUMENT = r"\"[^\"]*\"|'[^']*'|\S*[^\s\"'`);]"
_PROGRAMS = (
    ("mysql", r"mysql[\w\-]*", r"-p(?=\S)"),  # the word after a lone -p is no password
    ("mariadb", r"mariadb[\w\-]*", r"-p(?=\S)"),
    ("-cli", "(?:redis|valkey)-cli", r"-a\s+"),
    ("-benchmark", "(?:redis|valkey)-benchmark", r"-a\s+"),
    ("-server", "(?:redis|valkey)-server", r"--(?:requirepass|masterauth)\s+"),
    ("curl", "curl", r"-[uU]\s*(?=[\"']?[^\s:\"']+:(?!\*))"),
    ("sshpass", "sshpass", r"\A(?:\s+-\w+)*?\s+-p(?:\s+(?!-))?"),  # before the command that it runs
    ("mongo", "mongo(?:sh|dump|restore|export|import|stat|top)?", r"-p(?:\s+(?!-))?"),
    ("login", r"(?:docker|podman|nerdctl|helm|oras|skopeo)\s+(?:\S+\s+){0,4}?login", r"-p(?:\s+(?!-))?"),
    ("ldap", "ldap(?:search|modify|add|delete|passwd|whoami)", r"-w(?:\s+(?!-))?"),
    ("sqlcmd", "sqlcmd", r"-P(?:\s+(?!-))?"),
    ("bcp", "bcp", r"-P(?:\s+(?!-))?"),
    ("aws", r"aws\s+configure\s+set", r"(?:[\w\-.]+\.)?aws_(?:secret_access_key|session_token|access_key_id)\s+"),
)
"""Words that a line must hold, a program, and what stands before a value that this program makes a secret."""
_NAMED = (
    rf"(?<![\w\-])(?P<part>)(?P<name>--?{_NAME})\s+(?P<value>{_QUOTED}|(?!--?[A-Za-z])[^\s\"']+)",
    rf"(?P<part>)(?P<name>{_QUOTE}{_NAME}{_QUOTE}\s*):\s*(?P<value>{_ENTRY_VALUE})",
    rf"(?P<part>)(?:\A|[\n,{{(\[;\"'])[ \t\-]*(?P<name>{_NAME}):[ \t\x1f]*(?P<value>{_ENTRY_VALUE})",
    rf"(?P<part>)(?<![\w.\-/:@$])(?P<name>{_NAME}):(?!//)(?P<value>{_ENTRY_VALUE})",
    rf"(?P<part>)(?<![\w.\-/:@$])(?P<name>(?=[A-Za-z0-9]+[_.\-]){_NAME}|{_NAME}(?=:\s+{_NO_WORD})):[ \t\x1f]+"
    rf"(?P<value>{_ENTRY_VALUE})",
    rf"(?P<part>)(?P<name>{_QUOTE}(?:--?{_NAME}|[A-Z][A-Z0-9_]+){_QUOTE})\s*,\s*(?P<value>{_QUOTED})",
    rf"(?P<part>)(?<![\w.\-])(?P<name>-{{0,2}}{_NAME})(?:{_QUOTE}\])?(?:\s+(?::=|==?>?)\s*|(?::=|==|=>)\s*|=\s*(?=[\"'\\]))"
    rf"(?P<value>{_QUOTED}|(?![a-z_]+(?:\.[a-z_]+)+(?:[\[(\s]|\Z))[^\s,;\"'{{}}\[\]]+)",
    rf"(?P<part>[?&;,(\[{{]\s*)?(?<![\w.\-])(?P<name>-{{0,2}}{_NAME})(?:=|%3[dD])"
    rf"(?P<value>{_QUOTED}|\S{{1,{_MAX_DECIDING}}})",
)
"""Options, entries of a table, and assignments; ``part``: what shows that a value ends before the next blank."""
_ALL_HINTS = tuple(
    dict.fromkeys(
        [*(hint for hints, _, _ in _RULES for hint in hints), *_NAME_HINTS, *(hint for hint, _, _ in _PROGRAMS)]
    )
)
