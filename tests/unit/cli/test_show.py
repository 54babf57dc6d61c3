"""What people read in a terminal."""

from vlarge.cli.show import print_table


def test_terminal_codes_of_a_dataset_are_shown_not_obeyed(capsys):
    print_table("wh\x1b[31mat\nnot", ["task"], [["\x1b[31mred\x1b]0;title\x07 \x9b2J 机 é\nnext"]])
    printed = capsys.readouterr().out
    assert r"\x1b[31mred\x1b]0;title\x07 \x9b2J 机 é" in printed
    assert r"wh\x1b[31mat not" in printed
    assert not set(printed) & set("\x1b\x07\x9b")
