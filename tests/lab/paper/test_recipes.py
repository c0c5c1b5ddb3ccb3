"""A recipe is a stranger's file: it is read with types, and its blocks are folders inside --out."""

import os

import pytest

from ausam_lab.paper import recipe

HEAD = 'title = "t"\nseeds = 1\n'
BLOCK = '[[block]]\nname = "x"\ncolumn = "c"\nextra = ["sgd"]\n'
BAD = {
    "": "title",
    "title = 3\nseeds = 1\n" + BLOCK: "title",
    'title = "t"\nseeds = 1000000000\n' + BLOCK: "seeds",
    'title = "t"\nseeds = "x"\n' + BLOCK: "seeds",
    HEAD + "block = []": "at least one",
    HEAD + BLOCK + BLOCK: "a name of its own",
    HEAD + BLOCK.replace('"sgd"', ""): "no rows",
    HEAD + BLOCK.replace('"sgd"', '"nope"'): 'no pair "nope"',
    HEAD + BLOCK + 'rows = ["sgd"]': "rows",
    HEAD + BLOCK + 'colour = "red"': "colour",
    HEAD + BLOCK + "settings = { foo = 1 }": 'no setting "foo"',
    HEAD + BLOCK + "settings = { data = 3 }": "data is 3",
    HEAD + BLOCK + "settings_of = { sgd = { foo = 2 } }": 'no setting "foo"',
    HEAD + BLOCK + 'settings_of = { sgd = { epochs = "a" } }': "epochs is 'a'",
    HEAD + BLOCK + "settings_of = { sam = { epochs = 2 } }": "not one of its rows",
    HEAD + '[settings]\nlr = "a"\n' + BLOCK: "lr is 'a'",
    HEAD + '[settings]\nbase = "sgdx"\n' + BLOCK: "base",
    **{HEAD + BLOCK.replace('"x"', f'"{name}"'): "name" for name in ("../../x", "/abs", "..", "", "a" * 300)},
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_is_no_recipe_is_refused(tmp_path, text):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=BAD[text]):
        recipe.cells(recipe.read(str(path)), device="cpu")


@pytest.mark.parametrize("small", ["settings_of = 3", "settings_of = { sgd = 3 }", 'epochs = "a"'])
def test_small_settings_are_read_with_types(tmp_path, small):
    path = tmp_path / "bad.toml"
    path.write_text(f"{HEAD}[small]\n{small}\n{BLOCK}")
    with pytest.raises(ValueError, match=r"object|epochs is 'a'"):
        recipe.read(str(path), "small")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ValueError, match="not a regular file"):
        recipe.read(str(tmp_path / "pipe.toml"))
