//! Output for people: numbered steps, verdicts, tables.

use std::fmt;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

pub(crate) struct Output<'a> {
    out: &'a mut dyn Write,
    color: bool,
    steps: u32,
    all_met: bool,
}

impl<'a> Output<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, color: bool) -> Self {
        Self { out, color, steps: 0, all_met: true }
    }

    /// Lets `writeln!` write here.
    pub(crate) fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
        self.out.write_fmt(text)
    }

    /// Begins a step.
    pub(crate) fn step(&mut self, title: &str) -> io::Result<()> {
        self.steps += 1;
        let title = self.paint(Style::new().bold(), &format!("{}. {title}", self.steps));
        writeln!(self, "\n{title}")
    }

    /// Prints and records whether an expectation was met.
    pub(crate) fn verdict(&mut self, met: bool, expectation: &str) -> io::Result<()> {
        self.all_met &= met;
        let (color, word) = if met { (AnsiColor::Green, "ok") } else { (AnsiColor::Red, "FAILED") };
        let word = self.paint(color.on_default(), word);
        writeln!(self, "   {word} {expectation}")
    }

    /// Whether all expectations so far were met.
    pub(crate) fn all_met(&self) -> bool {
        self.all_met
    }

    /// Prints rows under a head, each column as wide as its widest cell.
    pub(crate) fn table<const N: usize>(
        &mut self,
        head: [&str; N],
        rows: &[[String; N]],
    ) -> io::Result<()> {
        let widths: [usize; N] = std::array::from_fn(|column| {
            let cells = rows.iter().map(|row| row[column].len());
            cells.chain([head[column].len()]).max().unwrap_or(0)
        });
        let line = |cells: &[String; N]| {
            let padded: Vec<String> =
                cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            padded.join("  ").trim_end().to_owned()
        };
        let head = self.paint(Style::new().bold(), &line(&head.map(str::to_owned)));
        writeln!(self, "   {head}")?;
        rows.iter().try_for_each(|row| writeln!(self, "   {}", line(row)))
    }

    fn paint(&self, style: Style, text: &str) -> String {
        if self.color { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}
