"""Reads the user's data: an .npz, a table of text, or a folder of images by class.

text --_delimited: encoding, separator, header--> cells
     --_columns: numbers, decimal commas, categories, identifiers--> columns
     --_tables: label, groups, missing values--> Dataset
"""

import warnings
from pathlib import Path

from jaxpriv.data import _arrays, _delimited, _digests, _preprocessing, _tables, images
from jaxpriv.data.dataset import Dataset

__all__ = ["Bounds", "Options", "load"]

Bounds = _preprocessing.Bounds
Options = _preprocessing.Options


def load(path: Path, options: Options) -> Dataset:
    """Reads a file or folder of the user, without unpickling; warns of duplicate records.

    Args:
      path: a table of text, an .npz, or a folder that contains a folder of images for each class.
      options: roles of the columns, and treatment of missing values.

    Returns:
      The data set.

    Raises:
      ValueError: if the data are incomplete, damaged or ambiguous.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder, "flowers.tsv")
      ...     _ = path.write_text("length\\tkind\\n1.5\\tiris\\n2.5\\trose\\n3.5\\trose\\n")
      ...     flowers = load(path, Options(label="kind"))
      >>> flowers.class_names, flowers.notes[0]
      (('iris', 'rose'), 'Columns are separated by tabs.')
    """
    tables = ("label", "group", "exclude", "public_bounds")
    if path.is_dir():
        options.check_defaults(f"the folder {path}", *tables, "missing")
        dataset = images.read_folder(path, name=path.resolve().name)
        duplicates = _digests.count_duplicates(dataset.x, dataset.y)
    elif path.suffix.lower() in _delimited.SUFFIXES:
        dataset, duplicates = _tables.read(path, options)
    elif path.suffix.lower() == ".npz":
        options.check_defaults(f"{path}, which has the arrays y and group", *tables)
        dataset, duplicates = _arrays.read(path, options)
    else:
        raise ValueError(
            f"Expected a folder, an .npz file or a table ({', '.join(_delimited.SUFFIXES)}), "
            f"got {path}."
        )
    if dataset.num_classes < 2:
        raise ValueError(f"Expected at least two classes in {path}, got {dataset.class_names[0]}.")
    if duplicates:
        warnings.warn(
            f"{duplicates} of {len(dataset)} records in {path} equal another one: a duplicate "
            "between members and non-members spoils an audit.",
            stacklevel=3,
        )
    return dataset
