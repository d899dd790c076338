"""How a new environment is checked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.update.health_check import Device, check_environment
from edge_agent.update.installation import locate
from edge_agent.update.service_user import SAME_USER
from federated.errors import ConfigError

PROGRAM = """#!/bin/sh
if [ $1 = --version ]; then echo edge-agent 0.4.0; exit; fi
echo "$EDGE_AGENT_DOCTOR_BROKER $EDGE_AGENT_DOCTOR_NAME" "$@" >>{said}
exit 4
"""


@pytest.mark.skipif(os.name != "posix", reason="runs shell scripts")
def test_a_password_of_the_broker_is_no_argument_and_in_no_error(tmp_path: Path) -> None:
    """Other users can see arguments, and errors are kept in refused.json."""
    broker, said = "mqtt://pi:secret@broker.example", tmp_path / "said"
    for name, text in (("edge-agent", PROGRAM), ("python", "#!/bin/sh\nexit 1\n")):
        program = locate(tmp_path, name)
        program.parent.mkdir(exist_ok=True)
        program.write_text(text.format(said=said))
        program.chmod(0o755)
    device = Device(broker, name="pi-7")
    with pytest.raises(ConfigError, match="edge-agent doctor failed with code 4") as caught:
        check_environment(tmp_path, "0.4.0", device, SAME_USER, print)
    assert "secret" not in str(caught.value)
    assert said.read_text().split() == [broker, "pi-7", "doctor"]
