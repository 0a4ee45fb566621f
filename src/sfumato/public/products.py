"""Products that give a record the same bits wherever it stands in its batch.

Libraries take another way through a product with few columns, and which way depends on where a row stands: its last bits differ.
The wall finds that out and then shows a map its records one by one (`BoundedSum.sizes`), which is right and slow. A map that
multiplies by a narrow matrix is as fast as any other with `row_product`. Everything here is public.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

# Products of fewer columns than 12 were seen to differ, of 12 and more never.
_COLUMNS = 16


def row_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows (…, k) @ matrix (…, k, columns), with zeros for the columns that are too few; differentiable."""
    columns = matrix.shape[-1]
    if columns >= _COLUMNS:
        return rows @ matrix
    wide = functional.pad(matrix, (0, _COLUMNS - columns))
    return (rows @ wide)[..., :columns].contiguous()
