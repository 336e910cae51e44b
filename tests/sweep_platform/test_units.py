from sweep_platform import units

SAMPLING = {"n": 4.0, "temperature": 1.0, "top_p": 0.7, "top_k": -1.0}


def test_a_cost_with_its_error_keeps_its_unit() -> None:
    assert units.metric("cost/flops", 7_300_416.0, 203_802.6) == "7.3 ± 0.2 MFLOPs"
    assert units.metric("cost/tokens", 12.0, 3.4) == "12 ± 3.4 tokens"
    assert units.metric("cost/flops", 7_300_416.0) == "7.3 MFLOPs"
    assert units.metric("val/accuracy", 0.5, 0.021) == "0.500 ± 0.021"
    assert units.metric("val/accuracy", 0.5) == "0.5"


def test_an_accuracy_stands_beside_how_it_was_sampled() -> None:
    drawn = {
        "val/sampling/n": 4.0,
        "val/sampling/temperature": 1.0,
        "val/sampling/top_p": 0.7,
        "val/sampling/top_k": -1,
    }
    told = units.accuracy(0.5, 0.021) + units.sampling({"val/accuracy": 0.5, **drawn})
    assert told == "0.500 ± 0.021 (n=4, temperature=1, top_p=0.7, top_k=-1)"
    assert units.accuracy(0.5, None) + units.sampling({"val/accuracy": 0.5}) == "0.500"
