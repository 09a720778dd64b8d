//! Output for people: numbered steps, verdicts, tables.

use std::fmt;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

pub(crate) struct Output<'a> {
    out: &'a mut dyn Write,
    paint: Paint,
    steps: u32,
    /// Whether all expectations so far were met.
    pub(crate) all_met: bool,
}

impl<'a> Output<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, color: bool) -> Self {
        Self { out, paint: Paint { on: color }, steps: 0, all_met: true }
    }

    /// Lets `writeln!` write here.
    pub(crate) fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
        self.out.write_fmt(text)
    }

    /// Begins a step.
    pub(crate) fn step(&mut self, title: &str) -> io::Result<()> {
        self.steps += 1;
        let title = self.paint.bold(&format!("{}. {title}", self.steps));
        writeln!(self, "\n{title}")
    }

    /// Prints and records whether an expectation was met.
    pub(crate) fn verdict(&mut self, met: bool, expectation: &str) -> io::Result<()> {
        self.all_met &= met;
        let word = if met { self.paint.green("ok") } else { self.paint.red("FAILED") };
        writeln!(self, "   {word} {expectation}")
    }

    /// Prints rows under a head, each column as wide as its widest cell.
    pub(crate) fn table<const N: usize>(
        &mut self,
        head: [&str; N],
        rows: &[[String; N]],
    ) -> io::Result<()> {
        let (head, rows) = aligned(head, rows.iter());
        writeln!(self, "   {}", self.paint.bold(&head))?;
        rows.iter().try_for_each(|row| writeln!(self, "   {row}"))
    }
}

/// Adds colour and weight to text, or not.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    /// Only on a terminal.
    pub on: bool,
}

impl Paint {
    pub fn green(self, text: &str) -> String {
        self.style(AnsiColor::Green.on_default(), text)
    }

    pub fn red(self, text: &str) -> String {
        self.style(AnsiColor::Red.on_default(), text)
    }

    pub fn bold(self, text: &str) -> String {
        self.style(Style::new().bold(), text)
    }

    fn style(self, style: Style, text: &str) -> String {
        if self.on { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// The lines of a table, first its head: each column is as wide as its widest cell, and a line ends
/// at its last word.
pub fn aligned<'a, const N: usize>(
    head: [&str; N],
    rows: impl Iterator<Item = &'a [String; N]> + Clone,
) -> (String, Vec<String>) {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.clone().map(|cells| cells[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    });
    let line = |cells: &[String; N]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    (line(&head.map(str::to_owned)), rows.map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_at_their_last_word() {
        let rows = [["n1".to_owned(), String::new()], ["node-22".to_owned(), "up".to_owned()]];
        let (head, rows) = aligned(["NODE", "STATE"], rows.iter());
        assert_eq!(head, "NODE     STATE");
        assert_eq!(rows, ["n1", "node-22  up"]);
    }

    #[test]
    fn only_a_screen_sees_colour() {
        assert_eq!(Paint { on: true }.red("x"), "\x1b[31mx\x1b[0m");
        assert_eq!(Paint { on: false }.red("x"), "x");
    }
}
