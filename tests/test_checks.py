import pytest
import torch

from mmrl.checks import CheckError, DtypeError, ShapeError, check_dtypes, check_shapes


def test_dimension_letters_bind_to_sizes():
    assert check_shapes("B T", a=torch.ones(2, 3), b=torch.zeros(2, 3)) == {"B": 2, "T": 3}
    assert check_shapes("", scalar=torch.tensor(1.0)) == {}
    assert check_shapes("B ...", a=torch.ones(2, 3, 4), b=torch.ones(2, 3, 4)) == {"B": 2}
    assert check_shapes("B ...", a=torch.ones(2)) == {"B": 2}


def test_bindings_of_one_call_constrain_the_next_unchanged():
    bound = check_shapes("B R", rewards=torch.ones(4, 2))
    with pytest.raises(ShapeError, match=r"^weights: expected \[R\] with R=2, got \[4\]$"):
        check_shapes("R", bound, weights=torch.ones(4))
    check_shapes("T", bound, x=torch.ones(9))
    assert bound == {"B": 4, "R": 2}


@pytest.mark.parametrize(
    ("dims", "shapes", "message"),
    [
        ("B", {"a": (2,), "b": (3,)}, r"^b: expected \[B\] with B=2, got \[3\]$"),
        ("B T", {"a": (2, 3), "b": (3, 2)}, r"^b: expected \[B, T\] with B=2, T=3, got \[3, 2\]$"),
        ("B", {"a": (2, 1)}, r"^a: expected \[B\], got \[2, 1\]$"),
        ("B T", {"a": (2,)}, r"^a: expected \[B, T\], got \[2\]$"),
        ("B B", {"a": (2, 3)}, r"^a: expected \[B, B\], got \[2, 3\]$"),
        ("", {"a": (1,)}, r"^a: expected \[\], got \[1\]$"),
        (
            "B ...",
            {"a": (2, 3, 4), "b": (2, 4, 3)},
            r"^b: expected \[B, ...\] with B=2, ...=\[3, 4\], got \[2, 4, 3\]$",
        ),
        ("B ...", {"a": (2, 3), "b": (2,)}, r"^b: expected \[B, ...\] with B=2, ...=\[3\], got \[2\]$"),
        ("B T ...", {"a": (2,)}, r"^a: expected \[B, T, ...\], got \[2\]$"),
    ],
)
def test_shape_errors_name_actual_and_expected_shapes(dims, shapes, message):
    with pytest.raises(ShapeError, match=message):
        check_shapes(dims, **{name: torch.ones(shape) for name, shape in shapes.items()})


def test_dtypes_are_checked_by_family():
    half, single, double = (torch.ones(1, dtype=d) for d in (torch.bfloat16, torch.float32, torch.float64))
    index, flag = torch.ones(1, dtype=torch.int32), torch.ones(1, dtype=torch.bool)
    check_dtypes("float", a=half, b=single, c=double)
    check_dtypes("float32", a=single, b=double)
    check_dtypes("int", a=index)
    check_dtypes("bool", a=flag)
    for kind, wrong in (("float", index), ("float32", half), ("int", flag), ("int", single), ("bool", index)):
        with pytest.raises(DtypeError, match=r"^x: expected "):
            check_dtypes(kind, x=wrong)
    with pytest.raises(DtypeError, match=r"^x: expected float32 or float64, got bfloat16$"):
        check_dtypes("float32", x=half)


def test_errors_form_one_hierarchy():
    assert (
        issubclass(ShapeError, CheckError) and issubclass(DtypeError, CheckError) and issubclass(CheckError, ValueError)
    )
