"""Forms in which secrets stand on command lines, in files and in messages, and texts that only look like them."""

LETTERS = "aB3dE6gHi9KlMn2pQrStUvWxYz0123456789abcdEFGHIJ"
HEX = "0123456789abcdef"
UUID = "a1b2c3d4-e5f6-7890-abcd-ef1234567890"
_TELEGRAM = f"123456789:AAF-{LETTERS[:31]}"

NAMED = (
    # JSON, also in quotes and in JSON
    ("""{"hf_token": "SECRET", "model": "gpt2"}""", "gpt2"),
    ("""'{"hf_token":"SECRET"}'""", "hf_token"),
    (r"""{\"hf_token\": \"SECRET\", \"model\": \"gpt2\"}""", "gpt2"),
    (r"""{\\\"hf_token\\\": \\\"SECRET\\\", \\\"model\\\": 2}""", "model"),
    ("""{'api_key': 'SECRET', 'lr': 1e-4}""", "1e-4"),
    ("""{"a": {"password": "SECRET"}, "n": 5}""", '"n": 5'),
    ("""{"password": "x\\"SECRET", "n": 5}""", '"n": 5'),
    ("""{"Authorization": "Bearer SECRET", "n": 5}""", '"n": 5'),
    ("""{"args": ["--hf_token", "SECRET", "--lr", "1"]}""", '"--lr", "1"'),
    ("""{"name": "x", "hf_token": "SECRET""", '"name": "x"'),  # cut
    # YAML, TOML, INI, environment files
    ("hf_token: SECRET", "hf_token"),
    ("token:SECRET", "token"),
    ("token: SECRET", "token"),
    ("a: 1\npassword: 'SECRET'\nmodel: gpt2", "model: gpt2"),
    ("- token: SECRET\n- model: gpt2", "model: gpt2"),
    ("{hf_token: SECRET, model: gpt2}", "model: gpt2"),
    ('api_key = "SECRET"', "api_key"),
    ("api_key = SECRET", "api_key"),
    ("api_key ='SECRET'", "api_key"),
    ("lr = 1\nclient_secret = 'SECRET'\nmodel = 'gpt2'", "model = 'gpt2'"),
    ("export HF_TOKEN=SECRET; python train.py", "python train.py"),
    ("PGPASSWORD=SECRET psql -h host", "psql -h host"),
    ("docker run -e HF_TOKEN=SECRET -e LR=1 image", "-e LR=1 image"),
    ("AccountName=x;AccountKey=SECRET==;EndpointSuffix=core", "EndpointSuffix=core"),
    ("Server=h;User Id=sa;Password=SECRET;Database=d", "Database=d"),
    ("machine host login ana password SECRET", "machine host login ana"),
    # options
    ("train.py --hf_token SECRET --lr 1", "--lr 1"),
    ("train.py --hf-token=SECRET --lr 1", "--lr 1"),
    ("train.py ++wandb.api_key=SECRET lr=1", "lr=1"),
    ("train.py --opt token=SECRET --lr 1", "--lr 1"),
    ("java -Dspring.datasource.password=SECRET -jar x.jar", "-jar x.jar"),
    ("curl -u ana:SECRET https://host/x", "ana"),
    ("-u ana:SECRET", "ana"),
    ("sshpass -p SECRET ssh host", "ssh host"),
    # headers
    ("Authorization: Bearer SECRET", "Authorization"),
    ("curl -H 'Authorization: Bearer SECRET' https://host/x", "https://host/x"),
    ('curl -H "Authorization: Basic SECRET" https://host/x', "https://host/x"),
    ("curl -H Authorization:SECRET https://host/x", "https://host/x"),
    ("metadata authorization=Bearer SECRET", "metadata"),
    ("curl -H 'X-Api-Key: SECRET' https://host/x", "https://host/x"),
    ("Cookie: a=SECRET; session=SECRET", "Cookie"),
    # addresses
    ("https://ana:SECRET@host/x", "@host/x"),
    ("postgresql+psycopg2://ana:SECRET@host:5432/db", "@host:5432/db"),
    ("redis://:SECRET@host:6379/0", "@host:6379/0"),
    ("https://host/y?token=SECRET&model=gpt2", "&model=gpt2"),
    ("https://host/y?model=gpt2&api_key=SECRET", "model=gpt2"),
    ("https://host/y?token%3DSECRET%26model=gpt2", "model=gpt2"),
    # code
    ("""python -c "login(token='SECRET', write=True)" """, "write=True"),
    ("""os.environ['HF_TOKEN'] = 'SECRET'; main()""", "main()"),
    ("""os.environ["HF_TOKEN"]="SECRET"; main()""", "main()"),
    ("""os.environ.setdefault("HF_TOKEN", "SECRET"); main()""", "main()"),
    ("""Command '['python', '--hub_token', 'SECRET', '--lr', '1']' failed""", "'--lr', '1']' failed"),
)
"""Texts in which the word SECRET is a secret for what stands before it, and what must still be seen of them."""

OF_A_FORM = (
    *(f"hf_{LETTERS[:34]}", f"hf_oauth_{LETTERS[:40]}", f"api_org_{LETTERS[:34]}"),
    *(f"sk-{LETTERS[:40]}", f"sk-ant-api03-{LETTERS[:40]}", f"sk-proj-{LETTERS[:20]}_x-y", f"sk-or-v1-{LETTERS[:40]}"),
    *(f"ghp_{LETTERS[:36]}", f"github_pat_11AB{LETTERS[:20]}_{LETTERS[:40]}", f"glpat-{LETTERS[:20]}"),
    *("AKIAIOSFODNN7EXAMPLE", f"AIza{LETTERS[:35]}", f"ya29.{LETTERS[:40]}", f"GOCSPX-{LETTERS[:28]}"),
    *(f"xoxb-123456789012-{LETTERS[:24]}", f"xapp-1-A1-{LETTERS[:20]}", _TELEGRAM, f"bot{_TELEGRAM}"),
    *(f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{LETTERS[:20]}", f"npm_{LETTERS[:36]}", f"pypi-AgEI{LETTERS[:40]}"),
    *(f"nvapi-{LETTERS[:40]}", f"r8_{LETTERS[:37]}", f"gsk_{LETTERS}", f"wandb_v1_{LETTERS[:40]}"),
    *(f"local-{HEX * 2}{HEX[:8]}", f"dapi{HEX * 2}", f"hvs.{LETTERS[:40]}", f"tvly-{LETTERS[:20]}"),
    *(f"lin_api_{LETTERS[:40]}", f"ntn_{LETTERS[:40]}", f"glsa_{LETTERS[:32]}_{HEX[:8]}", f"key-{HEX * 2}"),
    f"-----BEGIN RSA PRIVATE KEY-----\n{LETTERS}\n-----END RSA PRIVATE KEY-----",
    f"https://api.telegram.org/bot{_TELEGRAM}/sendMessage",
    f"https://hooks.slack.com/services/T000/B000/{LETTERS[:24]}",
    f"https://discord.com/api/webhooks/1234567890/{LETTERS}",
    f"https://x.webhook.office.com/webhookb2/{UUID}@{UUID}/IncomingWebhook/{HEX * 2}/{UUID}",
    f"https://open.feishu.cn/open-apis/bot/v2/hook/{UUID}",
    f"https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={UUID}",
    f"https://oapi.dingtalk.com/robot/send?access_token={LETTERS}",
    f"https://mattermost.host/hooks/{LETTERS[:26]}",
    f"https://maker.ifttt.com/trigger/x/with/key/{LETTERS[:22]}",
    f"https://hc-ping.com/{UUID}",
    f"https://b.blob.core.windows.net/c?sv=1&sig={LETTERS[:40]}%3D&se=2",
    f"https://s3.amazonaws.com/b?X-Amz-Signature={HEX * 4}&X-Amz-Date=1",
)
"""Texts that are secrets, or hold one, whatever stands before them."""

NO_SECRETS = (
    "--max_token_length 512 --num_tokens 1e6 --tokenizer gpt2 --token_dropout 0 --eos_token_id 2",
    "tokenizer: meta-llama/Llama-3.1-8B",
    "tokenizer: x\nnum_tokens=5\npad_token: <s>\nmax_tokens: 512\nuse_auth_token: true\nhf_token: ${HF_TOKEN}",
    """{"pad_token": "<pad>", "eos_token": "</s>", "max_new_tokens": 64, "num_key_value_heads": 8, "token": null}""",
    'tokenizer = "gpt2"\nmax_tokens = 512\nhub_strategy = "every_save"\nauthor = "Ann"\nsort_key: name',
    "token = tokenizer.eos_token\napi_key = os.environ['API_KEY']\ndef f(token: str, key: int) -> None:",
    "meta-llama/Llama-3.1-8B /data/hf_cache/token.json s3://bucket/key/path credentials: /home/x/creds.json",
    "nvcr.io/nvidia/pytorch:24.05-py3 image@sha256:" + HEX * 4,
    f"GPU-{UUID} checkpoint-123456789:AAAA adapter: 123456789:lora 2024-01-01 12:34:56 host:29500",
    "-u 1000:1000 --user ana git@github.com:org/repo.git ssh://git@github.com/org/repo",
    "no token: set HF_TOKEN, or log in. The hub refused the token: see the log. GPU token: 12",
    "argument --hub_token: expected one argument",
    "HF_TOKEN= python train.py --session night-run --auth basic auth: basic signature: x passes: 3",
    "local-run-7 key-value-cache sk-learn secret_sauce_llama fw_llama hf_transfer pat-terns /srv/hooks/pre-commit",
)
"""Texts that stay as they are."""
