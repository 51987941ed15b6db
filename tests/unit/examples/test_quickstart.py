"""What the quickstart tells of its training."""

from quickstart import warnings_in


def test_warnings_of_the_training_are_told(tmp_path):
    log = tmp_path / "train.log"
    log.write_bytes(b"[swap] step 8: accuracy 90%\n[swap] warning at step 9: accuracy fell\nwarning: \xff\n")
    assert warnings_in(log) == ["[swap] warning at step 9: accuracy fell"]
