"""Check the demo's result, its last line of JSON on standard input, against what the README
promises; exit 1 with what is wrong.
"""

import json
import sys

result = json.loads(sys.stdin.read().splitlines()[-1])
sizes = {agent["submodel"] for agent in result["agents"]}
wrong = [
    f"{what}: found {found}"
    for right, what, found in (
        (result["broker"].startswith("rumqttd"), "expected the embedded broker", result["broker"]),
        (result["accuracy"] >= 0.93, "expected an accuracy of at least 0.93", result["accuracy"]),
        (
            result["worst_accuracy"] >= 0.88,
            "expected a worst accuracy of at least 0.88",
            result["worst_accuracy"],
        ),
        (len(result["agents"]) == 4, "expected four agents", result["agents"]),
        (len(sizes) >= 3, "expected at least three sizes", sorted(sizes)),
        (
            not sizes & set(result["untrained"]),
            "expected the submodels of all agents trained",
            result["untrained"],
        ),
        (
            min(result["bytes_up"], result["bytes_down"], result["rounds"]) > 0,
            "expected rounds, and bytes in both directions",
            [result[key] for key in ("rounds", "bytes_up", "bytes_down")],
        ),
        (
            result["onnx_max_abs_diff"] <= 1e-5,
            "expected ONNX within 1e-5 of PyTorch",
            result["onnx_max_abs_diff"],
        ),
        (
            result["inference"]["accuracy"] >= 0.88,
            "expected an inference accuracy of at least 0.88",
            result["inference"]["accuracy"],
        ),
    )
    if not right
]
sys.exit("; ".join(wrong) or 0)
