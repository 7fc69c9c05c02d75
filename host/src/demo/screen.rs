//! What the demo shows: sections, a line for each fact, and colours where a person looks.

use std::fmt::Arguments;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use anyhow::Result;

const FACT: Style = AnsiColor::Green.on_default().bold();
const NUMBER: Style = AnsiColor::Cyan.on_default().bold();
const TITLE: Style = Style::new().bold();
const COMMAND: Style = Style::new().dimmed();
const ADDED: Style = AnsiColor::Green.on_default();
const REMOVED: Style = AnsiColor::Red.on_default();

/// Lines are cut to this width where there is no terminal.
const WIDTH: usize = 100;

/// Prints to stdout.
pub struct Screen {
    width: usize,
    sections: u32,
}

impl Screen {
    pub fn new() -> Self {
        let width = match terminal_size::terminal_size_of(io::stdout()) {
            Some((terminal_size::Width(width), _)) => width.into(),
            None => WIDTH,
        };
        Self { width, sections: 0 }
    }

    pub fn title(&self, text: &str) -> Result<()> {
        print(format_args!("{TITLE}{text}{TITLE:#}"))
    }

    /// Begins the next numbered section.
    pub fn section(&mut self, title: &str) -> Result<()> {
        self.sections += 1;
        let number = self.sections;
        print(format_args!(
            "\n{NUMBER}{number}{NUMBER:#} {TITLE}{title}{TITLE:#}"
        ))
    }

    /// Something that was checked.
    pub fn fact(&self, text: &str) -> Result<()> {
        print(format_args!("  {FACT}✓{FACT:#} {text}"))
    }

    /// A command to be run.
    pub fn command(&self, text: &str) -> Result<()> {
        print(format_args!("  {COMMAND}$ {text}{COMMAND:#}"))
    }

    /// What a command printed: long lines are cut, those of a diff have colours.
    pub fn output(&self, text: &str) -> Result<()> {
        for line in text.trim_end().lines() {
            if line.is_empty() {
                print(format_args!(""))?;
                continue;
            }
            let style = match line.trim_start().chars().next() {
                Some('+') => ADDED,
                Some('-') => REMOVED,
                _ => Style::new(),
            };
            let line = self.cut(line);
            print(format_args!("    {style}{line}{style:#}"))?;
        }
        Ok(())
    }

    /// As much of a line as fits beside the margin.
    fn cut(&self, line: &str) -> String {
        let room = self.width.saturating_sub(5);
        match line.char_indices().nth(room) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line.to_owned(),
        }
    }

    /// Shows that something is being done until it is done.
    pub async fn busy<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        if !io::stderr().is_terminal() {
            return work.await;
        }
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        let mut frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏".chars().cycle();
        let began = Instant::now();
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    // Leaves the line as if nothing had been written.
                    eprint!("\r\x1b[2K");
                    return done;
                }
                _ = ticks.tick() => {
                    let frame = frames.next().unwrap_or(' ');
                    let seconds = began.elapsed().as_secs();
                    eprint!("\r\x1b[2K  {frame} {what} ({seconds} s)");
                }
            }
        }
    }
}

fn print(line: Arguments<'_>) -> Result<()> {
    Ok(writeln!(anstream::stdout().lock(), "{line}")?)
}
