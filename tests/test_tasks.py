"""Data, order, dropout and models: the exact contents of a batch."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from tasks import TASKS, BatchRandomness
from tasks.core.order import BatchOrder, split_hash, validation_rows
from tasks.core.randomness import use_batch_dropout
from tasks.vision.images import CIFAR10Data, MNISTData
from tests.tiny import TinyImages

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")


def test_the_order_depends_on_seed_and_step_alone() -> None:
    forward = [BatchOrder(40, 8, 5, CPU).rows(step) for step in range(12)]
    order = BatchOrder(40, 8, 5, CPU)
    assert all(torch.equal(order.rows(step), forward[step]) for step in (11, 0, 7, 7, 3))
    assert not torch.equal(forward[0], forward[5])
    assert not torch.equal(forward[0], BatchOrder(40, 8, 6, CPU).rows(0))


def test_the_split_is_the_published_one() -> None:
    for n, expected, data in ((60_000, "7770a2f1e873fbce", MNISTData), (50_000, "536c203a1db0c437", CIFAR10Data)):
        assert split_hash(n, data.n_val, data.name) == expected
    held_out, rest = validation_rows(1000, 100, "x")
    assert sorted([*held_out.tolist(), *rest.tolist()]) == list(range(1000))
    assert len(held_out) == 100


@pytest.mark.parametrize("name", TASKS)
def test_held_out_tasks_choose_on_another_split(name: str) -> None:
    spec = TASKS[name]
    data = spec.data_cls
    assert spec.ranks_training == (name in ("synthetic", "synthetic_joint", "attention_matrix"))
    assert (data.select, data.report) == ("train", "train") if spec.ranks_training else data.select != data.report
    assert spec.ranks_training or "train" not in (data.select, data.report)


@pytest.mark.parametrize("name", TASKS)
def test_losses_with_a_known_infimum_are_on_a_logarithmic_scale(name: str) -> None:
    spec = TASKS[name]
    theory = spec.module.startswith("tasks.theory")
    assert (spec.scale == "log") == theory
    if theory:  # the others need files, and the infimum of their loss is not known
        data = spec.data_cls(seed=0)
        assert data.loss_offset.keys() == data.sizes.keys()
        assert data.loss_offset["train"] == data.f_star


def randomness(step: int, rows: slice) -> BatchRandomness:
    where = BatchRandomness(seed=3)
    where.step, where.rows = step, rows
    return where


def test_pixels_are_normalised_as_torchvision_does() -> None:
    data = TinyImages(Path())
    images, labels = data.batch("train", torch.arange(5))
    raw = data._splits["train"][0][:5]
    expected = torch.stack([v2.functional.normalize(x.float() / 255, [0.5], [0.5]) for x in raw])
    torch.testing.assert_close(images, expected)
    assert torch.equal(labels, data._splits["train"][1][:5])


def test_augmented_images_are_shifted_and_flipped() -> None:
    plain, augmented = TinyImages(Path()), TinyImages(Path(), flip=True, crop=2)
    rows = torch.arange(40)
    source = plain.batch("train", rows)[0]
    images = augmented.batch("train", rows, randomness(0, slice(0, 40)))[0]
    padded = torch.nn.functional.pad(source, [2] * 4, value=-1.0)
    seen = set()
    for i in range(40):
        shifts = {
            (dy, dx, flip): (window.flip(-1) if flip else window)
            for dy in range(5)
            for dx in range(5)
            for flip in (False, True)
            for window in [padded[i, :, dy : dy + 8, dx : dx + 8]]
        }
        matches = [key for key, image in shifts.items() if torch.allclose(image, images[i])]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 20
    assert {flip for *_, flip in seen} == {False, True}


def test_augmentation_depends_on_step_and_place() -> None:
    data, rows = TinyImages(Path(), flip=True, crop=2), torch.arange(12)
    whole = data.batch("train", rows, randomness(4, slice(0, 12)))[0]
    parts = [data.batch("train", rows[i : i + 5], randomness(4, slice(i, min(i + 5, 12))))[0] for i in (0, 5, 10)]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, data.batch("train", rows, randomness(5, slice(0, 12)))[0])
    assert torch.equal(data.batch("train", rows)[0], TinyImages(Path()).batch("train", rows)[0])


@pytest.mark.parametrize("d", [1, 2, 3])
def test_dropout_of_channels_drops_them_whole_whatever_the_micro_batches(d: int) -> None:
    kind = getattr(torch.nn, f"Dropout{d}d")
    x = torch.ones(8, 50, *[3] * d)

    def dropped(rows: slice) -> Tensor:
        return use_batch_dropout(torch.nn.Sequential(kind(0.5)), randomness(1, rows))(x[rows])

    whole = dropped(slice(0, 8))
    assert torch.equal(whole, torch.cat([dropped(slice(0, 3)), dropped(slice(3, 8))]))
    assert torch.equal(whole, whole[:, :, *[slice(1)] * d].expand_as(whole))
    assert set(whole.unique().tolist()) == {0, 2}
    assert 0.35 < whole.eq(0).float().mean() < 0.65


def test_mnist_pixels_and_labels_are_those_that_torchvision_reads(real_data: Path, tmp_path: Path) -> None:
    import gzip

    from torchvision.datasets import MNIST

    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for archive in (real_data / "MNIST" / "raw").glob("*.gz"):
        (raw / archive.stem).write_bytes(gzip.decompress(archive.read_bytes()))
    theirs, ours = MNIST(str(tmp_path), train=False), MNISTData(real_data)
    assert torch.equal(ours._splits["test"][0][:, 0], theirs.data)
    assert torch.equal(ours._splits["test"][1], theirs.targets)
    assert ours.sizes == {"train": 55_000, "val": 5_000, "test": 10_000}
