//! How results and messages are printed: data to stdout, messages to stderr, colours only on a terminal.

use std::io::{self, Write as _};
use std::time::{Duration, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use comfy_table::{ColumnConstraint, ContentArrangement, Row, Table, presets};
use serde_json::value::RawValue;

use crate::journal::Timestamp;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[default]
    Text,
    Json,
}

pub const BOLD: Style = Style::new().bold();
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
const WARN: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// Prints data: one text and a line end.
///
/// # Errors
/// When stdout takes no more.
pub fn print(text: &str) -> io::Result<()> {
    writeln!(anstream::stdout().lock(), "{text}")
}

/// A message for people, beside the data.
pub fn message(text: &str) {
    tell(format_args!("{text}"));
}

pub fn error(text: &str) {
    tell(format_args!("{BAD}error{BAD:#}: {}", plain(text)));
}

pub fn warning(text: &str) {
    tell(format_args!("{WARN}warning{WARN:#}: {}", plain(text)));
}

pub fn hint(text: &str) {
    tell(format_args!("{HINT}hint{HINT:#}: {text}"));
}

fn tell(text: std::fmt::Arguments<'_>) {
    // A message that nobody can read is lost; the work is not.
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// A table without lines, fitted to the terminal: a row takes one line there, and as much as it needs
/// elsewhere. The first column is what people copy; it is never cut.
pub struct Rows {
    table: Table,
    fitted: bool,
}

impl Rows {
    pub fn new<const N: usize>(header: [&str; N]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(header);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        if let Some(first) = table.column_mut(0) {
            first.set_constraint(ColumnConstraint::ContentWidth);
        }
        let width = terminal_size::terminal_size_of(io::stdout());
        if let Some((terminal_size::Width(width), _)) = width {
            table
                .set_width(width)
                .set_content_arrangement(ContentArrangement::Dynamic);
        }
        Self {
            table,
            fitted: width.is_some(),
        }
    }

    pub fn add<const N: usize>(&mut self, cells: [String; N]) {
        let mut row = Row::from(cells);
        if self.fitted {
            row.max_height(1);
        }
        self.table.add_row(row);
    }

    /// # Errors
    /// When stdout takes no more.
    pub fn print(&self) -> io::Result<()> {
        let text = self.table.trim_fmt();
        match text.split_once('\n') {
            Some((header, rows)) => print(&format!("{BOLD}{header}{BOLD:#}\n{rows}")),
            None => print(&format!("{BOLD}{text}{BOLD:#}")),
        }
    }
}

/// Facts of one thing, one a line; further lines of a value stand below its first.
///
/// # Errors
/// When stdout takes no more.
pub fn print_facts(facts: &[(&str, String)]) -> io::Result<()> {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in facts {
        let value = plain(value);
        let mut lines = value.lines();
        let first = lines.next().unwrap_or_default();
        print(&format!("{BOLD}{name:width$}{BOLD:#}  {first}"))?;
        for line in lines {
            print(format!("{:width$}  {line}", "").trim_end())?;
        }
    }
    Ok(())
}

/// Text that guests or others wrote, without what a terminal would obey.
pub fn plain(text: &str) -> String {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    text.replace(obeyed, "\u{fffd}")
}

/// A moment, in UTC.
pub fn time(at: Timestamp) -> String {
    match UNIX_EPOCH.checked_add(Duration::from_millis(at)) {
        Some(time) => humantime::format_rfc3339_seconds(time).to_string(),
        None => at.to_string(),
    }
}

/// So many of them: `1 run`, `2 runs`.
pub fn count(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// JSON on one line as it is, or nothing.
pub fn json(value: Option<&RawValue>) -> String {
    value.map_or_else(String::new, |value| value.get().replace(['\n', '\r'], " "))
}
