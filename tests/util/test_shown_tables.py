"""Tables for people: aligned, escaped, and without what could change a terminal or a page."""

from dcmh.util.tables import Markup, html_table, text_table


def test_text():
    table = text_table(["name", "count", "share"], [["a\x1b[2J\n", 1200, 0.5], ["long name", 3, None]])
    header, first, second = table.splitlines()
    assert header.split() == ["name", "count", "share"]
    assert first == r"a\x1b[2J\n  1,200  0.500"
    assert second.split() == ["long", "name", "3"]
    assert second.index("3") == first.index(",200") + 3
    assert len(header) == len(first)


def test_html():
    table = html_table("<b>", ["<i>"], [["<script>"], [Markup("<img>")], [None]])
    assert table.count("<img>") == 1
    assert "<td>&lt;script&gt;</td>" in table
    assert "<caption>&lt;b&gt;</caption>" in table
    assert "<td></td>" in table
