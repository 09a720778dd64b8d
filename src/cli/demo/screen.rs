//! What the person sees: numbered steps, sentences, tables.

use std::io::{self, Write};

use super::super::table::{self, Paint};

/// Writes to the terminal, or to a file without colours.
pub(super) struct Screen<'a> {
    out: &'a mut dyn Write,
    paint: Paint,
    steps: u32,
}

impl<'a> Screen<'a> {
    /// `screen` is whether people are looking.
    pub(super) fn new(screen: bool, out: &'a mut dyn Write) -> Self {
        Self { out, paint: Paint::new(screen), steps: 0 }
    }

    /// Begins a step.
    pub(super) fn step(&mut self, title: &str) -> io::Result<()> {
        self.steps += 1;
        let title = self.paint.bold(&format!("{}. {title}", self.steps));
        self.line(&format!("\n{title}"))
    }

    /// A line, seen at once: between two of them there may be seconds.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// A line that says whether something was as promised, which is returned.
    pub(super) fn verdict(&mut self, as_promised: bool, text: &str) -> io::Result<bool> {
        let text = if as_promised {
            format!("   {} {text}", self.paint.green("ok"))
        } else {
            format!("   {} {text}", self.paint.red("NOT AS PROMISED"))
        };
        self.line(&text)?;
        Ok(as_promised)
    }

    /// A table, indented like the text.
    pub(super) fn table<const N: usize>(
        &mut self,
        head: [&str; N],
        rows: Vec<[String; N]>,
    ) -> io::Result<()> {
        let rows: Vec<_> = rows.into_iter().map(|row| (row, false)).collect();
        let mut text = Vec::new();
        table::write(&mut text, self.paint, head, &rows)?;
        for line in String::from_utf8_lossy(&text).lines() {
            self.line(&format!("   {line}"))?;
        }
        Ok(())
    }
}
