"""The configuration of a broker: defaults, files, options, and messages that name the place."""

from __future__ import annotations

import pickle
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from whimbrel.broker.access.passwords import DEFAULT_COST, Cost
from whimbrel.broker.settings.config import SECTIONS, AccessSettings, Config, ListenSettings, constant_warnings
from whimbrel.broker.settings.config_files import print_config, read_config, reference
from whimbrel.broker.settings.fields import ConfigError, setting_of, settings_of
from whimbrel.cli.service.doctor import findings

DOCS = Path(__file__).parents[2] / "docs"


def _read(folder: Path, document: str) -> Config:
    path = folder / "whimbrel.toml"
    path.write_text(document, encoding="utf-8")
    return read_config(path)


def _refusal(folder: Path, document: str) -> str:
    with pytest.raises(ConfigError) as raised:
        _read(folder, document)
    return str(raised.value).removeprefix(f"{folder}/")


def _names(*, are_constants: bool = False) -> list[str]:
    return [
        f"{section}.{name}"
        for section, kind in SECTIONS.items()
        for name, each in settings_of(kind).items()
        if setting_of(each).is_constant == are_constants
    ]


def test_the_printed_configuration_reads_back_as_the_defaults(tmp_path: Path) -> None:
    """Whoever starts from the printed file and changes nothing has changed nothing."""
    assert _read(tmp_path, print_config()) == Config()


def test_a_printed_configuration_reads_back_as_it_was(tmp_path: Path) -> None:
    """Quotes, backslashes and other alphabets in a path are written as TOML wants them."""
    config = Config().with_overrides({"node.data": 'é "a"\\b\t\x7f', "limits.connect_timeout_s": 2.5, "hold.max": 7})
    assert _read(tmp_path, print_config(config)) == config


def test_every_setting_is_printed_and_in_the_reference() -> None:
    """A setting that nobody can read about does not exist."""
    tree = tomllib.loads(print_config())
    assert [f"{section}.{key}" for section, values in tree.items() for key in values] == _names()
    page = reference()
    assert all(f"| `{name}` |" in page for name in [*_names(), *_names(are_constants=True)])


def test_every_setting_has_a_comment_above_it() -> None:
    """The printed file is the manual most people will read."""
    lines = print_config().splitlines()
    settings = [index for index, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert len(settings) == len(_names())
    assert all(lines[index - 1].startswith("# ") for index in settings)


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    """Defaults are for everything one does not care about."""
    config = _read(tmp_path, "[listen]\nport = 0\n[observe]\nsys_interval_s = 0.5\n")
    assert config.listen == ListenSettings(port=0)
    assert replace(config, listen=ListenSettings(), observe=Config().observe) == Config()
    assert config.observe.sys_interval_s == 0.5


def test_a_setting_that_becomes_a_constant_is_obeyed_and_warned_of(tmp_path: Path) -> None:
    """Nobody's broker stops starting because of an update; the one after it refuses the setting."""
    config = _read(tmp_path, "[log]\nview_interval_s = 5.0\nretain_days = 3\n[pipeline]\nmax_rows = 7\n")
    assert (config.log.view_interval_s, config.pipeline.max_rows) == (5.0, 7)
    assert list(constant_warnings(config)) == [
        "log.view_interval_s becomes a constant, 5: remove it from the configuration; the next release refuses it",
        "pipeline.max_rows becomes a constant, 100000: remove it from the configuration; the next release refuses it",
    ]
    assert _read(tmp_path, print_config(config)).configured_constants == config.configured_constants
    assert list(constant_warnings(Config())) == []
    told = [each.told for each in findings(config) if not each.is_well and each.name == "configuration"]
    assert told == list(constant_warnings(config)), "whimbrel doctor finds it before the update does"


@pytest.mark.parametrize("name", _names(are_constants=True))
def test_no_how_to_names_a_constant(name: str) -> None:
    """What a page tells operators to set is theirs to set."""
    assert not [page.name for page in (DOCS / "how-to").glob("*.md") if f"`{name}`" in page.read_text("utf-8")]


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    """A fresh start needs no decisions."""
    assert _read(tmp_path, "# nothing yet\n") == Config()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[listen]\nport = 70000", "listen.port: found 70000, allowed is an integer from -1 to 65535"),
        ("[listen]\nport = true", "listen.port: found True, allowed is an integer from -1"),
        ('[listen]\nport = "1883"', "listen.port: found '1883', allowed is an integer from -1"),
        ("[limits]\nconnect_timeout_s = nan", "limits.connect_timeout_s: found nan, allowed is a number from 0.1"),
        ("[limits]\nconnect_timeout_s = 1" + "0" * 400, "limits.connect_timeout_s: found an integer of 1329 bits"),
        ("[mqtt]\nallow_zero_length_client_id = 1", "mqtt.allow_zero_length_client_id: found 1, allowed is true or"),
        ('[node]\nname = "a b"', "node.name: found 'a b', allowed is 1 to 64 letters"),
        ('[node]\ndata = ""', "node.data: found '', allowed is the path of a directory"),
        ('[observe]\nlog_format = "xml"', 'observe.log_format: found \'xml\', allowed is "text" or "json"'),
        ("listen = 3", "listen: found 3, allowed is a section, [listen]"),
        ("[[listen]]\nport = 3", "listen: found [{'port': 3}], allowed is a section"),
    ],
)
def test_a_bad_value_is_named_with_its_place(tmp_path: Path, document: str, message: str) -> None:
    """The administrator finds the line at once: file, setting, what was found, what is allowed."""
    assert _refusal(tmp_path, document).startswith(f"whimbrel.toml: {message}")


@pytest.mark.parametrize(
    ("document", "where", "meant"),
    [
        ("[observe]\nloglevel = 'info'", "[observe] has no setting loglevel", "log_level"),
        ("[lisen]\nport = 1883", "there is no section [lisen]", "[listen]"),
        ("[mqtt]\nport = 1883", "[mqtt] has no setting port", "listen.port"),
        ("packet_bytes = 5", "there is no packet_bytes", "limits.packet_bytes"),
        ("[limits]\npaket_bytes = 5", "[limits] has no setting paket_bytes", "packet_bytes"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(tmp_path: Path, document: str, where: str, meant: str) -> None:
    """A slip of the pen must not be a setting that silently does nothing."""
    refusal = _refusal(tmp_path, document)
    assert refusal == f"whimbrel.toml: {where}; did you mean {meant}?"


def test_a_name_like_nothing_suggests_nothing(tmp_path: Path) -> None:
    """A wild guess would send people the wrong way."""
    assert "did you mean" not in _refusal(tmp_path, "[qqqq]\n")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[listen]\nport = \n", "line 2, column 8: found 'port =', allowed is TOML (Invalid value)"),
        ("[listen]\nport = 1\nport = 2\n", "line 3, column 9: found 'port = 2', allowed is TOML"),
        ("[listen]\na = [1,", "end of the file: found nothing, allowed is TOML"),
        ("a = " + "9" * 5000, "this is too large for TOML: Exceeds the limit"),
        ("a = " + "[" * 100_000, "this is too large for TOML"),
    ],
)
def test_what_is_no_toml_is_named_with_its_line(tmp_path: Path, document: str, message: str) -> None:
    """A parser's traceback is no message."""
    assert _refusal(tmp_path, document).startswith(f"whimbrel.toml: {message}")


def test_files_that_cannot_be_read_are_the_same_kind_of_error(tmp_path: Path) -> None:
    """One reaction, correct the configuration, has one class to catch."""
    (tmp_path / "latin").write_bytes(b"# caf\xe9")
    for name, message in (
        ("none", "cannot be read: No such file"),
        (".", "cannot be read: Is a directory"),
        ("latin", "line 1: found b'\\xe9'"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            read_config(tmp_path / name)


def test_options_override_and_those_not_given_do_not() -> None:
    """The command line passes all its options on, given or not."""
    config = Config().with_overrides({"listen.port": 0, "node.name": None})
    assert config == Config(listen=ListenSettings(port=0))


def test_a_bad_option_is_said_to_come_from_the_command_line() -> None:
    """Nobody should look for it in the file."""
    with pytest.raises(ConfigError, match=r"^command line: listen\.port: found -2"):
        Config().with_overrides({"listen.port": -2})
    with pytest.raises(ConfigError, match=r"^command line: \[listen\] has no setting prt; did you mean port\?"):
        Config().with_overrides({"listen.prt": None})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[listen]\ntls_port = 8883", "TLS needs both --tls-certificate and --tls-key"),
        ('[listen]\nwss_port = 0\n[tls]\ncertificate = "c"', "TLS needs both --tls-certificate and --tls-key"),
        ("[tls]\nrequire_client_certificate = true", "tls.require_client_certificate needs tls.client_ca"),
        ("[listen]\nhttp_port = 1883", "listen.http_port and listen.port are both 1883; give each a port of its own"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, document: str, message: str) -> None:
    """A broker that starts must be the one that was asked for."""
    assert _refusal(tmp_path, document).startswith(f"whimbrel.toml: {message}")


def test_several_ports_may_be_any_free_one() -> None:
    """Tests start many brokers side by side."""
    assert Config(listen=ListenSettings(port=0, ws_port=0, http_port=0)).listen.ws_port == 0


def test_clients_without_a_name_come_in_if_there_are_no_users_or_it_is_said_so() -> None:
    """Making a users file closes the door without a second setting."""
    assert AccessSettings().admits_anonymous
    assert not AccessSettings(users="users").admits_anonymous
    assert AccessSettings(users="users", anonymous=True).admits_anonymous


def test_a_value_that_is_not_allowed_cannot_be_built() -> None:
    """Whoever holds a configuration need not check it again."""
    with pytest.raises(ConfigError, match=r"^listen\.port: found 1\.5"):
        ListenSettings(port=1.5)  # type: ignore[arg-type]  # that is the point


def test_the_error_pickles() -> None:
    """Errors cross process borders with their values."""
    error = ConfigError("file", "listen.port", 70000, "less", "advice")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 # our own bytes


def test_passwords_cost_what_is_recommended_unless_told(tmp_path: Path) -> None:
    """128 MiB by default; a small machine may take less, in powers of two, as scrypt wants them."""
    assert Cost.of_memory(Config().access.password_hash_mib) == DEFAULT_COST
    cheaper = _read(tmp_path, "[access]\npassword_hash_mib = 16").access
    assert Cost.of_memory(cheaper.password_hash_mib) == Cost(n=2**14)
    found = _refusal(tmp_path, "[access]\npassword_hash_mib = 100")
    assert found.endswith("access.password_hash_mib: found 100, allowed is a power of two from 1 to 128")
