"""The networks of the experiments, by name. Each full-size network has smaller versions of the same class."""

import inspect
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ausam_lab.names.lookup import find
from ausam_lab.names.user_code import OWN, imported_function, is_own
from ausam_lab.networks.mlp import mlp
from ausam_lab.networks.resnet import ResNet, basic, bottleneck

Builder = Callable[[int, int], nn.Module]

# name -> builder(classes, channels)
MODELS: dict[str, Builder] = {
    "resnet-tiny": partial(ResNet, basic, (1, 1), 8),  # the default for 8x8 digits
    "resnet-tiny-w32": partial(ResNet, basic, (1, 1), 32),  # the demo: half a batch is half the work
    "resnet-small-w8": partial(ResNet, basic, (1, 1, 1), 8),
    "resnet-small": partial(ResNet, basic, (1, 1, 1), 16),
    "resnet18-w8": partial(ResNet, basic, (2, 2, 2, 2), 8),
    "resnet18-w16": partial(ResNet, basic, (2, 2, 2, 2), 16),
    "resnet18": partial(ResNet, basic, (2, 2, 2, 2), 64),
    "resnet50-w8": partial(ResNet, bottleneck, (3, 4, 6, 3), 8),
    "resnet50": partial(ResNet, bottleneck, (3, 4, 6, 3), 64),
    "mlp": mlp,  # the fastest on a CPU: for Fashion-MNIST in minutes
}

# on CPUs and GPUs, convolutions are fastest with channels last
FORMATS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}

# for poses, where classes are joints; ausam_lab.paper has some
POSE_MODELS: dict[str, Builder] = {}

# setting of Config -> what it does to a network, given the setting's value; ausam_lab.paper has "quantize"
TRANSFORMS: dict[str, Callable[[nn.Module, int], nn.Module]] = {}


def build(name: str, classes: int, channels: int, seed: int = 0) -> nn.Module:
    """Build a network of `MODELS`, or of the user's ``module:function``, on the CPU, with weights from the seed.

    Convolutions are Kaiming-normal (fan-out, ReLU), BatchNorm is ones and zeros, the last layer is torch's default.
    User-defined networks, and those for poses, keep their initial weights. torch's global random state is not changed.
    """
    make = builder(name)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs as well
        model = make(classes, channels)
        return model if is_own(name) or name in POSE_MODELS else model.apply(_initialise)


def builder(name: str) -> Builder:
    """The builder of the network of this name. A ValueError for an unknown name."""
    return _own(name) if is_own(name) else find("model", name, MODELS, OWN)


def parameter_count(name: str, classes: int = 10, channels: int = 3) -> int:
    """Count the trainable parameters of a network of `MODELS` without allocating them."""
    make = find("model", name, MODELS, OWN)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make(classes, channels).parameters())


@torch.no_grad()
def check_fit(name: str, model: nn.Module, x: Tensor, output_shape: tuple[int, ...]) -> None:
    """Raise a ValueError if the network cannot take such a batch, or its outputs have a different shape."""
    model.eval()
    try:
        z = model(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"{name} cannot take a batch of shape {tuple(x.shape)}: {error}. "
            "Choose another --model, or your own as module:function."
        ) from error
    if not isinstance(z, Tensor) or z.shape != (len(x), *output_shape):
        got = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else f"a {type(z).__name__}"
        one_less = isinstance(z, Tensor) and len(output_shape) == 1 and z.shape == (len(x), output_shape[0] - 1)
        counted = "Classes are numbered from 0: are yours from 1? " if one_less else ""
        raise ValueError(
            f"{name} returns {got} for a batch of {len(x)}, but the data needs {(len(x), *output_shape)}. "
            f"{counted}Choose a network for this kind of data."
        )


def to_memory_format(x: Tensor, name: str) -> Tensor:
    """The batch in this format. A batch of anything but images is unchanged."""
    return x.contiguous(memory_format=FORMATS[name]) if x.dim() == 4 else x


def _own(name: str) -> Builder:
    """The user's function as a builder, called with (classes, channels), or without arguments if it takes none."""
    function = imported_function("model", name)

    def build(classes: int, channels: int) -> nn.Module:
        takes = inspect.signature(function)
        arguments = (classes, channels) if takes.parameters else ()
        try:
            takes.bind(*arguments)
        except TypeError:
            raise ValueError(
                f'model "{name}" takes {takes}, but it is called with (classes, channels), or without arguments.'
            ) from None
        model = function(*arguments)
        if not isinstance(model, nn.Module):
            raise ValueError(f'model "{name}" returned a {type(model).__name__}. Return a torch.nn.Module.')
        return model

    return build


@torch.no_grad()
def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        # nn.init.kaiming_normal_ ignores groups: depthwise weights would come out sqrt(groups) times too small, and
        # their gradients, behind a BatchNorm, as many times too large in the norm that a SAM ascent divides by.
        fan_out = module.out_channels // module.groups * math.prod(module.kernel_size)
        module.weight.normal_(0.0, math.sqrt(2.0 / fan_out))
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
