import pytest

from resync.cli import main
from resync.config import load_config

ROOM = "!room:example.com"
USER = "@user:example.com"


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESYNC_SERVER_NAME", "example.com")


def refused(capsys, *arguments: str) -> str:
    """What is said about a command line that cannot be used."""
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return printed.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["migrate", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["worker", "--onc"], "unrecognized arguments: --onc"),
        (["join", ROOM, "--user", USER], "the following arguments are required: --via"),
        (["join", ROOM, "--via", "hs1"], "the following arguments are required: --user"),
        (["join", "room", "--via", "hs1", "--user", USER], "argument ROOM:"),
        (["join", "#room:example.com", "--via", "hs1", "--user", USER], "argument ROOM:"),
        (["join", ROOM, "--via", "h s", "--user", USER], "argument --via:"),
        (["join", ROOM, "--via", "https://hs1", "--user", USER], "argument --via:"),
        (["join", ROOM, "--via", "hs1", "--user", "user"], "argument --user:"),
        (["join", ROOM, "--via", "hs1", "--user", "@user"], "argument --user:"),
        (["leave", ROOM], "the following arguments are required: USER"),
        (["leave", ROOM, "user"], "argument USER:"),
        (["purge"], "the following arguments are required: ROOM"),
        (["purge", "room"], "argument ROOM:"),
        (["status", "room"], "argument ROOM:"),
        (["trigger"], "the following arguments are required: ROOM"),
        (["trigger", "!"], "argument ROOM:"),
        (["generate-config", "--server-name", "a b"], "argument --server-name:"),
    ],
)
def test_bad_usage(capsys, arguments, said):
    assert said in refused(capsys, *arguments)


def test_a_user_of_another_server(capsys):
    said = refused(capsys, "join", ROOM, "--via", "hs1", "--user", "@user:other.org")
    assert said == (
        "resync: @user:other.org is not a user of this server: "
        "only users of example.com can be joined\n"
    )


def test_joining_through_ourselves_only(capsys):
    said = refused(capsys, "join", ROOM, "--via", "example.com", "--user", USER)
    assert said == "resync: at least one other server is needed to join through\n"


@pytest.mark.parametrize(
    "command",
    [
        ["migrate"],
        ["worker"],
        ["join", ROOM, "--via", "hs1", "--user", USER],
        ["status"],
        ["trigger", ROOM],
    ],
)
def test_every_command_refuses_a_bad_config(capsys, tmp_path, command):
    path = tmp_path / "bad.yaml"
    path.write_text("databse: x\nspark: {min_events: -1}\n")
    assert set(refused(capsys, *command, "--config", str(path)).splitlines()) == {
        f"resync: {path}: databse: unknown key; did you mean database?",
        f"resync: {path}: spark.min_events: must be greater than or equal to 1, not -1",
    }
    assert list(tmp_path.iterdir()) == [path]


def test_a_config_that_is_not_there(capsys):
    assert (
        refused(capsys, "status", "--config", "none.yaml")
        == "resync: none.yaml: cannot be read: No such file or directory\n"
    )


@pytest.mark.parametrize(
    "arguments", [["--config", "a.yaml", "status"], ["status", "--config", "a.yaml"]]
)
def test_config_may_come_before_or_after_the_command(capsys, tmp_path, arguments):
    (tmp_path / "a.yaml").write_text("nonsense: 1\n")
    assert refused(capsys, *arguments) == "resync: a.yaml: nonsense: unknown key\n"


def test_resync_yaml_is_found(capsys, tmp_path):
    (tmp_path / "resync.yaml").write_text("nonsense: 1\n")
    assert refused(capsys, "status") == "resync: resync.yaml: nonsense: unknown key\n"


def test_an_unknown_variable_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("RESYNC_DATABSE", "x")
    assert "did you mean RESYNC_DATABASE?" in refused(capsys, "status")


def test_generated_config_loads(capsys, tmp_path):
    assert main(["generate-config", "--server-name", "hs.example.org:8448"]) == 0
    path = tmp_path / "generated.yaml"
    path.write_text(capsys.readouterr().out)
    assert load_config(path, {}).server_name == "hs.example.org:8448"


def test_help_and_version(capsys):
    for flag in ("--help", "--version"):
        with pytest.raises(SystemExit) as end:
            main([flag])
        assert end.value.code == 0
    assert "generate-config" in capsys.readouterr().out
