//! Aligned columns, and colour on a terminal.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

/// Adds colour, or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    on: bool,
}

impl Paint {
    /// Colours only on a terminal.
    pub(super) const fn new(screen: bool) -> Self {
        Self { on: screen }
    }

    pub(super) fn green(self, text: &str) -> String {
        self.style(AnsiColor::Green.on_default(), text)
    }

    pub(super) fn red(self, text: &str) -> String {
        self.style(AnsiColor::Red.on_default(), text)
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.style(Style::new().bold(), text)
    }

    fn style(self, style: Style, text: &str) -> String {
        if self.on { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Writes rows under a head, each column as wide as its widest cell. Rows with `true` are red.
pub(super) fn write<const N: usize>(
    out: &mut dyn Write,
    paint: Paint,
    head: [&str; N],
    rows: &[([String; N], bool)],
) -> io::Result<()> {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|(cells, _)| cells[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    });
    let line = |cells: &[String; N]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    writeln!(out, "{}", paint.bold(&line(&head.map(str::to_owned))))?;
    for (cells, alarming) in rows {
        let text = line(cells);
        writeln!(out, "{}", if *alarming { paint.red(&text) } else { text })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_at_their_last_word() {
        let rows = [
            (["n1".to_owned(), String::new()], false),
            (["node-22".to_owned(), "up".to_owned()], true),
        ];
        let mut text = Vec::new();
        write(&mut text, Paint::new(false), ["NODE", "STATE"], &rows).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "NODE     STATE\nn1\nnode-22  up\n");
    }

    #[test]
    fn only_a_screen_sees_colour() {
        assert_eq!(Paint::new(true).red("x"), "\x1b[31mx\x1b[0m");
        assert_eq!(Paint::new(false).red("x"), "x");
    }
}
