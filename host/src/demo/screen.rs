//! What the demo shows: sections, a line for each fact, and colours where a person looks.

use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

use anyhow::Result;
use tokio::time::MissedTickBehavior;

const BOLD: &str = "1";
const DIM: &str = "2";
const GREEN: &str = "32";
const RED: &str = "31";
const CYAN: &str = "36";

/// Prints to stdout.
pub struct Screen {
    colours: bool,
    sections: u32,
}

impl Screen {
    pub fn new() -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colours: io::stdout().is_terminal() && !no_color, sections: 0 }
    }

    fn paint(&self, style: &str, text: &str) -> String {
        match self.colours {
            true => format!("\x1b[{style}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    pub fn title(&self, text: &str) -> Result<()> {
        print(&self.paint(BOLD, text))
    }

    /// Begins the next numbered section.
    pub fn section(&mut self, title: &str) -> Result<()> {
        self.sections += 1;
        let number = self.paint(CYAN, &self.sections.to_string());
        print(&format!("\n{number} {}", self.paint(BOLD, title)))
    }

    /// Something that was checked.
    pub fn fact(&self, text: &str) -> Result<()> {
        print(&format!("  {} {text}", self.paint(GREEN, "✓")))
    }

    /// A command or request.
    pub fn command(&self, text: &str) -> Result<()> {
        print(&format!("  {}", self.paint(DIM, &format!("$ {text}"))))
    }

    /// A remark.
    pub fn note(&self, text: &str) -> Result<()> {
        print(&format!("  {}", self.paint(DIM, text)))
    }

    /// What a command printed; lines of a diff in their colours.
    pub fn output(&self, text: &str) -> Result<()> {
        for line in text.trim_end().lines() {
            let shown = match line.trim_start().chars().next() {
                Some('+') => self.paint(GREEN, line),
                Some('-') => self.paint(RED, line),
                _ => line.to_owned(),
            };
            print(format!("    {shown}").trim_end())?;
        }
        Ok(())
    }

    /// Shows that something is being done until it is done.
    pub async fn busy<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        if !(self.colours && io::stderr().is_terminal()) {
            return work.await;
        }
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏".chars().cycle();
        let began = ticks.tick().await;
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    eprint!("\r\x1b[2K");
                    return done;
                }
                now = ticks.tick() => {
                    let frame = frames.next().unwrap_or(' ');
                    let seconds = now.duration_since(began).as_secs();
                    eprint!("\r\x1b[2K  {} {what} {}", self.paint(CYAN, &frame.to_string()),
                        self.paint(DIM, &format!("{seconds} s")));
                }
            }
        }
    }
}

fn print(line: &str) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{line}")?)
}
