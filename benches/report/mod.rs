//! How a benchmark prints: lines for people, or with `--json` one JSON object a line.

use serde_json::{Map, Value, json};

/// Prints what one benchmark measured.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    bench: &'static str,
    is_json: bool,
}

impl Report {
    /// A report of `bench`, in the form that the arguments ask for.
    pub fn new(bench: &'static str) -> Self {
        Self { bench, is_json: std::env::args().any(|argument| argument == "--json") }
    }

    /// A sentence about what follows; for people alone.
    pub fn say(self, text: &str) {
        if !self.is_json {
            println!("{text}");
        }
    }

    /// One thing and its numbers, each with its unit in its name.
    pub fn row(self, what: &str, numbers: &[(&str, f64)]) {
        if self.is_json {
            let mut object = Map::new();
            object.insert("bench".into(), json!(self.bench));
            object.insert("what".into(), json!(what));
            for (name, number) in numbers {
                object.insert((*name).into(), json!((number * 10.0).round() / 10.0));
            }
            println!("{}", Value::Object(object));
        } else {
            let numbers: Vec<_> =
                numbers.iter().map(|(name, number)| format!("{number:.1} {name}")).collect();
            println!("  {what:<32} {}", numbers.join("  "));
        }
    }

    /// How busy the machine was during the last minute: whoever reads a number has to know.
    pub fn load(self) {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let minute = load.split(' ').next().and_then(|minute| minute.parse().ok());
        self.row("load average of the last minute", &[("tasks", minute.unwrap_or(f64::NAN))]);
    }
}
