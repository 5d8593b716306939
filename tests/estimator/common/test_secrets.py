"""Secrets on command lines are masked, and nothing else is."""

import shlex
import string
from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st
from secret_corpus import HEX, LETTERS, NAMED, NO_SECRETS, OF_A_FORM, UUID
from slow_cases import quick_every

from vramtop.estimator.common import secrets
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.secrets import (
    MASK,
    displayed,
    displayed_arguments,
    displayed_data,
    mask_arguments,
    mask_line,
    mask_strings,
    show_secrets,
)

NAMES_OF_SECRETS = """
hub_token hub-token token hf_token hftoken hubToken push_to_hub_token access_token api_key api-key apikey
openai_api_key wandb_key wandb-api-key judge_api_key aws_access_key_id password db_password passwd mysql-passwd
passphrase DB_PASS secret client_secret my.secret aws_secret_access_key private_key auth_token bearer_token
session_token credential credentials run.logger.api_key WANDB_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN OPENAI_API_KEY
AWS_SESSION_TOKEN trainer.token mlflow_tracking_password jupyter_token cookie session sig ssh_key gitea_token
"""
HARMLESS_NAMES = """
tokenizer_name max_tokens num_tokens max_new_tokens pad_token eos_token eos_token_id mask_token token_dropout
special_tokens additional_special_tokens image_token tokens_per_batch text_key label_key key monitor use_auth_token
auth_mode hub_token key_size token_type_ids passes session signature_columns author secretary keyboard stop_token
new_token n_tokens token api_key_file password_file token_path secret_name cookies_file forward_pass
train_on_eos_token
"""


@pytest.fixture(autouse=True)
def masked() -> Iterator[None]:
    yield
    secrets._shown[0] = False


def masked_both_ways(arguments: list[str]) -> str:
    """Return the masked command line; by its arguments and by its text, the secrets are the same."""
    return " ".join(mask_arguments(arguments)) + "\n" + mask_line(shlex.join(arguments))


@pytest.mark.parametrize("secret", OF_A_FORM, ids=lambda form: form[:10])
def test_known_forms_are_masked_wherever_they_stand(secret: str) -> None:
    for arguments in (
        ["python", "train.py", secret],
        ["python", "train.py", "--report", secret, "--x", "1"],
        ["python", "train.py", f"--report={secret}"],
        ["python", "-c", f"login({secret!r})"],
    ):
        assert secret not in masked_both_ways(arguments)
        assert not any(part in masked_both_ways(arguments) for part in (LETTERS[:20], UUID, HEX * 2))


@pytest.mark.parametrize("secret", ["hunter", "s3cr3tV4lu3Xy", "S9"])
def test_values_of_secret_names_are_masked_in_every_form(secret: str) -> None:
    for text, kept in ((text.replace("SECRET", secret), kept) for text, kept in NAMED):
        masked = [mask_line(text), mask_line(f"x\n{text}"), *mask_arguments(["x", text, "--lr", "1"])]
        masked.append(str(mask_strings({"a": [text, 3]})))
        assert not any(secret in each for each in masked), masked
        assert kept in masked[0]
        assert mask_line(masked[0]) == masked[0]


@pytest.mark.parametrize(
    "words", [["hf_token:", "hunter"], ["api_key", "=", '"hunter"'], ['{"hf_token":', '"hunter"}']]
)
def test_arguments_that_are_a_secret_together_are_masked(words: list[str]) -> None:
    assert "hunter" not in " ".join(mask_arguments(["train.py", *words]))


def test_lists_in_data_are_masked_as_command_lines_and_by_their_name() -> None:
    assert mask_strings([["--hub_token", "hunter"], 3]) == [["--hub_token", MASK], 3]
    data = {"argv": ["x", "--hub_token", "hunter"], "api_keys": ["hunter"], "token": "x", "names": ["a"]}
    assert mask_strings(data) == {"argv": ["x", "--hub_token", MASK], "api_keys": [MASK], "token": MASK, "names": ["a"]}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("pip install git+https://ana:s3cret@host.org/x.git", "pip install git+https://ana:***@host.org/x.git"),
        ("mlflow --uri postgresql://u:p@ss/w@db:5432/x", "mlflow --uri postgresql://u:***@ss/w@db:5432/x"),
        ("curl -u ana:s3cret https://host", "curl -u ana:*** https://host"),
        ("curl -H 'Authorization: Bearer abc' x", "curl -H 'Authorization: ***' x"),
        ("wandb login " + "0a" * 20, "wandb login ***"),
        ("serve --api-keys k1x k2x --port 80", "serve --api-keys *** *** --port 80"),
        ("aws s3 presign https://b/x?X-Amz-Signature=0f0f0f&X-Amz-Date=1", "aws s3 presign https://b/x?X-Amz-Signature=***&X-Amz-Date=1"),
        ("az --sas 'https://b.blob/c?sv=1&sig=abc%2Bd%3D&se=2'", "az --sas 'https://b.blob/c?sv=1&sig=***&se=2'"),
        ("mysql --password=a;b,c x", "mysql --password=*** x"),
        ("HF_TOKEN=abc WANDB_API_KEY=def python t.py", "HF_TOKEN=*** WANDB_API_KEY=*** python t.py"),
        ("jupyter lab --NotebookApp.token=abc --port 1", "jupyter lab --NotebookApp.token=*** --port 1"),
        ("SSHPASS=abc PGPASSWORD=x1 sshpass -e ssh h", "SSHPASS=*** PGPASSWORD=*** sshpass -e ssh h"),
        ("x {api_key: abc, n: 2}", "x {api_key: ***, n: 2}"),
    ],
)  # fmt: skip
def test_lines_keep_all_but_the_secret(text: str, masked: str) -> None:
    assert mask_line(text) == masked
    assert " ".join(mask_arguments(text.split(" "))) == masked or "'" in text or "{" in text


@pytest.mark.parametrize(
    "line",
    [
        *NO_SECRETS,
        "--tokenizer_name gpt2 --max-total-tokens or --num_tokens 1e6 --pad_token <pad> --eos_token_id 2",
        "--auth_mode none --use_auth_token True --token False --special_tokens a b --hub_token --x",
        "--hub_token <HUB_TOKEN> --api_key $OPENAI_API_KEY --password ${PASSWORD} token=${oc.env:HF_TOKEN}",
        "--model meta-llama/Llama-3.1-8B --output_dir /scratch/ana/sk-learn-exp2 --revision " + "0a" * 20,
        "--text_key content --label_key label2 --private_key /home/ana/.ssh/id_rsa --credentials /etc/gcp.json",
        "torch launch --world_info=eyJsb2NhbGhvc3QiOiBbMCwgMV19",  # DeepSpeed's launcher
        "python -u train.py --user 1000:1000 --session nightrun --auth basic",
        "git@github.com:a/b.git https://huggingface.co/x?download=true ssh://git@host/x",
        "--eos_token=</s> --bos_token <s> --image_token <image> --mask_token [MASK] eos_token=<|endoftext|>",
        "hf_transfer=1 --model hf_llama_3_8b --name hf_mistral7b-instruct-v2 --tags sk-short gh-page",
        "--monitor_key eval/loss --key 3 --pass_through yes forward_pass=2 --passes 3 --sid 4 --sig no",
        "--cookie ./cookies.txt --token_file /run/secrets/token --password_file pw --key_size 128",
        "--judge_key score --sort-key name --bypass 3 --hotkey x1 --signature v1.2 --data.pad_token=foo",
        '{"eos_token": "</s>", "tokenizer": "gpt2", "max_tokens": 512, "key": "text"}',
        "the token of HF_TOKEN is not set; no token: set HF_TOKEN, or give --hub_token",
        "mysql -u root -p database",
        "mysql -P 3306 -h host",
        "python curl.py -u ana:1000 -p 8080",
        "ssh -p 2222 host",
        "docker run -p 8080:80 -a stdout image",
        "docker run image login.py",
        "redis-cli -h host -p 6379",
        "redis-cli -a $REDIS_PASSWORD ping",
        "mongodump --out x",
        "aws configure set region eu-west-1",
        "git configure set x y",
        "sshpass -e ssh -p 22 host",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert mask_line(line) == line
    assert mask_arguments(line.split(" ")) == line.split(" ")


@given(
    st.sampled_from(NAMES_OF_SECRETS.split()[:-8]),
    st.text(string.ascii_letters + string.digits + "+=_!%^@#.-", min_size=8, max_size=60).filter(
        lambda text: (
            not text.startswith(("-", "+", ".", "@"))
            and any(map(str.isalpha, text))
            and any(map(str.isdigit, text[1:-1]))
        )
    ),
    st.lists(st.sampled_from(["--lr", "1e-4", "train.py", "--pad_token", "<pad>", "--max_tokens", "512"]), max_size=4),
)
def test_any_value_of_a_secret_name_is_masked(name: str, value: str, others: list[str]) -> None:
    value = f"{value}Zq7"
    for secret in ([f"--{name}", value], [f"--{name}={value}"], [f"{name}={value}"]):
        masked = masked_both_ways(["python", *secret, *others])
        assert value not in masked


WORDS = st.text(string.ascii_lowercase, min_size=1, max_size=12)
PLAIN_VALUES = st.one_of(
    WORDS.map(lambda word: f"/data/{word}/run_1"),
    WORDS.map(lambda word: f"./{word}.json"),
    st.integers(-99_999_999, 99_999_999).map(str),
    st.floats(0, 1e6).map(str),
    st.sampled_from(["True", "false", "none", "None", "auto", "<pad>", "</s>", "[PAD]", "$HF_TOKEN", "yes", "null"]),
)


@given(
    st.lists(st.tuples(st.sampled_from([*HARMLESS_NAMES.split(), "api_key", "access_token"]), PLAIN_VALUES), max_size=5)
)
@settings(max_examples=100)
def test_plain_values_stay_whatever_their_name(pairs: list[tuple[str, str]]) -> None:
    for line in (
        [word for name, value in pairs for word in (f"--{name}", value)],
        [f"--{name}={value}" for name, value in pairs],
        [f"{name}={value}" for name, value in pairs],
    ):
        assert mask_arguments(line) == line
        assert mask_line(" ".join(line)) == " ".join(line)


@given(st.lists(st.tuples(st.sampled_from(HARMLESS_NAMES.split()), WORDS), max_size=5))
def test_words_stay_unless_their_name_is_a_secrets(pairs: list[tuple[str, str]]) -> None:
    named = [(name, value) for name, value in pairs if name not in ("token", "hub_token", "use_auth_token")]
    line = [word for name, value in named for word in (f"--{name}", value)]
    assert mask_arguments(line) == line
    assert mask_line(" ".join(line)) == " ".join(line)


@given(st.text(max_size=300))
@settings(max_examples=40)
def test_any_text_can_be_masked_twice(text: str) -> None:
    once = mask_line(text)
    assert mask_line(once) == once
    assert mask_arguments([text, text])[:0] == []


@pytest.mark.parametrize(
    "part",
    quick_every(
        3,
        [
            *("eyJ", "--a ", "a=", "{a: ", '"', "://", "sk-", "sk-a1-", "authorization:", "--token ", "token="),
            *(" -u a:", "Bearer ", "'a' "),
            *("a_", "a: ", 'x["a"] ', "\\", '\\"', "a = ", "a\x1f= ", 'a=\\"', "https://hook/", "Authorization: a "),
            *("'--a', ", "\n ", "machine a login a ", "1", "a%3D", "cookie: a=b; "),
        ],
    ),
)
def test_no_line_takes_long(part: str) -> None:
    """As far as it can be tested without a clock: a quadratic pattern would take minutes."""
    line = "token key " + part * (30_000 // len(part))
    mask_line(line)
    mask_arguments(["--token", line, line])


@pytest.mark.parametrize("length", [255, 256, 257, 5000])
def test_long_secrets_are_masked_to_their_end(length: int) -> None:
    assert mask_line(f"train.py hub_token={'x1' * length} --epochs 3") == "train.py hub_token=*** --epochs 3"
    assert mask_line(f"get https://h/?token={'x1' * length}&a=b") == "get https://h/?token=***&a=b"


def test_secrets_are_shown_on_request_but_not_in_what_is_stored() -> None:
    arguments = ["python", "--hub_token", "abc123"]
    with pytest.raises(InputError) as error:
        raise InputError("--hub_token abc123 is wrong")
    assert displayed("--hub_token abc123") == "--hub_token ***"
    assert displayed_arguments(arguments) == ["python", "--hub_token", "***"]
    assert displayed_data({"a": ["token=abc1"], "hub_token": "abc123", "n": 3}) == {
        "a": ["token=***"],
        "hub_token": "***",
        "n": 3,
    }
    assert error.value.message == "--hub_token *** is wrong"
    show_secrets()
    assert displayed("--hub_token abc123") == "--hub_token abc123"
    assert displayed_arguments(arguments) == arguments
    assert displayed_data(["token=abc1"]) == ["token=abc1"]
    assert error.value.message == "--hub_token abc123 is wrong"
    assert mask_line("--hub_token abc123") == "--hub_token ***"
    assert mask_strings(("token=abc1",)) == ["token=***"]


@pytest.mark.parametrize(
    "line",
    [
        "jupyter lab --ServerApp.token={} --port 8888",
        "jupyter-lab --ServerApp.token 123456 --IdentityProvider.token={} --NotebookApp.token={}",
        "python -m jupyter notebook --c.ServerApp.password={}",
        "mysql -uroot -p{} db",
        "/usr/bin/mysqldump -u root -p{} --databases a",
        "redis-cli -h host -a {} ping",
        "redis-server --requirepass {}",
        "curl -u ana:{} https://host/x",
        "curl -sS -uana:{} https://host/x",
        "sshpass -p {} ssh host",
        "sshpass -p{} rsync a b",
        "env PGPASSWORD={} psql",
        "aws configure set aws_secret_access_key {} --profile p",
        "aws configure set default.aws_session_token {}",
        "mongosh -u ana -p {} host",
        "docker login -u ana -p {} registry",
        "true && mysql -p{} ; curl -uana:{} x",
    ],
)
@pytest.mark.parametrize("secret", ["hunter2", "letmein", "Ab3+x/9=", "190211"])
def test_what_a_program_makes_a_secret(line: str, secret: str) -> None:
    filled = line.replace("{}", secret)
    for arguments in (filled.split(), ["bash", "-c", filled], ["sh", "-c", f"cd /tmp && {filled}"]):
        for masked in (mask_line(shlex.join(arguments)), " ".join(mask_arguments(arguments))):
            assert secret not in masked, masked
            assert "123456" not in masked, masked
            assert mask_line(masked) == masked
    quoted = filled.replace(secret, f"'{secret} z'")
    assert secret not in mask_line(quoted) or "=" in line


@pytest.mark.parametrize("password", ["a;b", "it's", "two words", "x|y&z"])
def test_a_whole_argument_is_a_secret_whatever_it_holds(password: str) -> None:
    masked = mask_arguments(["mysql", "-e", "it's", f"-p{password}", "db", "&&", "redis-cli", "-a", password, "ping"])
    assert masked == ["mysql", "-e", "it's", "-p***", "db", "&&", "redis-cli", "-a", "***", "ping"]
