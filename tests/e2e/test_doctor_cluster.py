"""`egpu doctor` at a whole cluster: for people, for scripts, and by its exit code."""

import json

import yaml

from support.commands import Place, up


def test_a_cluster_that_is_well_and_one_that_is_not_there(place: Place) -> None:
    with up(place, "--nodes", "2", "--gpus", "1") as (_, facts):
        done = place.run("doctor", KUBECONFIG=facts["kubeconfig"], COLUMNS="400")
        assert done.returncode == 0, done.stdout + done.stderr
        header, *rows = done.stdout.splitlines()
        assert header.split() == ["CHECK", "STATE", "FOUND", "TO", "FIX"]
        records = json.loads(place.run("doctor", "-o", "json", KUBECONFIG=facts["kubeconfig"]).stdout)
        assert yaml.safe_load(place.run("doctor", "-o", "yaml", KUBECONFIG=facts["kubeconfig"]).stdout) == records
        assert [row.split("  ")[0] for row in rows] == [record["check"] for record in records]
        found = {record["check"]: (record["state"], record["found"]) for record in records}
        assert found["agents"] == ("ok", "2 nodes offer slots")
        assert found["cards"] == ("ok", "2 cards are healthy")
        assert found["admission"][0] == "ok"
        elsewhere = place.run("doctor", "--namespace", "elsewhere", KUBECONFIG=facts["kubeconfig"])
        assert elsewhere.returncode == 1, "nobody leads there"
        assert "has never run here" in elsewhere.stdout
    gone = place.run("doctor", KUBECONFIG=facts["kubeconfig"])
    assert gone.returncode == 1
    assert "Traceback" not in gone.stderr
    assert gone.stderr.startswith("error: ")
