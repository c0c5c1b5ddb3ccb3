"""SelectiveStream with the streams that people have: Hugging Face's datasets, and WebDataset."""

import io
import json
import tarfile

import pytest
import torch

from ausam import AUSampling, Feedback, SelectiveBatchSampler, SelectiveStream

N, SIZE = 48, 6


class Pairs:
    """The stream's rows as they are, each with its key."""

    def __init__(self, rows, key):
        self.rows, self.key = rows, key

    def __iter__(self):
        for row in self.rows:
            yield row[self.key], row


def check(stream, first_value):
    """Every sample once in the first pass, half in the second; and the losses have reached the right scores."""
    for epoch, used in ((0, N), (1, N // 2)):
        indices = []
        for value, index in stream:
            assert torch.equal(value, first_value[index])
            stream.update(Feedback(index, torch.zeros(len(index)), value.float()))
            indices += index.tolist()
        assert (len(indices), len(set(indices))) == (used, used), epoch
    once = stream.sampler.scores.count == 1
    assert torch.equal(stream.sampler.scores.sum[once], first_value[once].float())


def sampler():
    return SelectiveBatchSampler(N, SIZE, AUSampling(0.5, ramp=1))


@pytest.mark.parametrize("workers", [0, 2])
def test_parquet_files_of_datasets(workers, tmp_path):
    datasets = pytest.importorskip("datasets", reason='needs pip install "ausam[datasets]"')
    datasets.disable_progress_bars()
    values = torch.arange(N) * 3 + 1
    for part in torch.arange(N).chunk(4):
        rows = {"id": part.tolist(), "raw": [str(int(values[i])) for i in part]}
        datasets.Dataset.from_dict(rows).to_parquet(tmp_path / f"{int(part[0]):03}.parquet")
    files = sorted(map(str, tmp_path.glob("*.parquet")))
    rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path))
    source = Pairs(rows, "id")
    stream = SelectiveStream(source, lambda row: int(row["raw"]), sampler(), sharded=True, num_workers=workers)
    check(stream, values)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # WebDataset leaves the last file open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_tar_files_of_webdataset(workers, tmp_path):
    webdataset = pytest.importorskip("webdataset")
    values = torch.arange(N) * 5 + 2
    for part in torch.arange(N).chunk(4):
        with tarfile.open(tmp_path / f"{int(part[0]):03}.tar", "w") as tar:
            for i in part.tolist():
                raw = json.dumps(int(values[i])).encode()
                info = tarfile.TarInfo(f"sample-{i}.json")
                info.size = len(raw)
                tar.addfile(info, io.BytesIO(raw))
    rows = webdataset.WebDataset(sorted(map(str, tmp_path.glob("*.tar"))), shardshuffle=False)
    keys = {f"sample-{i}": i for i in range(N)}
    source = Pairs(rows, "__key__")  # without .decode(): the stream does it
    stream = SelectiveStream(
        source, lambda row: json.loads(row["json"]), sampler(), keys=keys, sharded=True, num_workers=workers
    )
    check(stream, values)
