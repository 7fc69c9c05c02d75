//! `onemark runs logs`

use anstyle::{AnsiColor, Style};
use anyhow::Context as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::output::{BOLD, count, plain, time};
use super::{Global, output};
use crate::journal::{CallNo, LogLevel, Timestamp};

#[derive(clap::Args)]
pub struct LogArgs {
    /// Id of the run
    run: String,
    /// Only lines of this level or above: debug, info, warn or error
    #[arg(long, value_name = "LEVEL")]
    level: Option<LogLevel>,
    /// Index of the first line to print
    #[arg(long, default_value_t = 0, value_name = "N")]
    from: u64,
    /// Go on printing what is written, until the run has ended
    #[arg(short, long)]
    follow: bool,
}

#[derive(Deserialize)]
struct Page {
    lines: Vec<Box<RawValue>>,
    next: Option<u64>,
    dropped: u64,
}

#[derive(Deserialize)]
struct End {
    dropped: u64,
}

#[derive(Deserialize)]
struct Line {
    index: u64,
    at: Timestamp,
    level: LogLevel,
    call: Option<CallNo>,
    attempt: u32,
    text: String,
}

fn style(level: LogLevel) -> Style {
    match level {
        LogLevel::Debug => Style::new().dimmed(),
        LogLevel::Info => BOLD,
        LogLevel::Warn => AnsiColor::Yellow.on_default().bold(),
        LogLevel::Error => output::BAD,
    }
}

impl Line {
    /// For people. What a terminal would obey is replaced, and a line of the log stays one line.
    fn text(&self) -> String {
        let style = style(self.level);
        let from = match self.call {
            Some(call) => format!("step {call}.{}", self.attempt),
            None => "workflow".to_owned(),
        };
        let text = plain(&self.text).replace('\n', "\\n");
        format!(
            "{}  {style}{:5}{style:#}  {from}  {text}",
            time(self.at),
            self.level
        )
    }
}

/// One line each, or with `-o json` all that is known of it.
pub async fn run(args: LogArgs, global: &Global) -> anyhow::Result<()> {
    let client = global.client()?;
    let path = ["v1", "runs", &args.run, "logs"];
    let print = |text: &str| -> anyhow::Result<u64> {
        let line: Line = serde_json::from_str(text).context("the server sent what is no log line")?;
        match global.json() {
            true => output::print(text)?,
            false => output::print(&line.text())?,
        }
        Ok(line.index)
    };
    let dropped = |lines: u64| {
        if lines > 0 {
            let (lines, were) = (count(lines, "more line"), if lines == 1 { "was" } else { "were" });
            output::message(&format!("{lines} {were} dropped, over the log's limits"));
        }
    };
    let level = args.level.unwrap_or(LogLevel::Debug).to_string();
    let mut from = args.from;
    if args.follow {
        loop {
            let query = [
                ("from", from.to_string()),
                ("level", level.clone()),
                ("follow", "true".to_owned()),
            ];
            let mut events = client.follow(&path, &query).await?;
            // A connection that breaks is made again, from where it was.
            while let Ok(Some(event)) = events.next().await {
                match event.name.as_deref() {
                    None => from = print(&event.data)? + 1,
                    Some("end") => {
                        let end: End = serde_json::from_str(&event.data)?;
                        dropped(end.dropped);
                        return Ok(());
                    }
                    Some(_) => {}
                }
            }
        }
    }
    let mut is_empty = true;
    loop {
        let query = [("from", from.to_string()), ("level", level.clone())];
        let page: Page = client.get(&path, &query).await?.read()?;
        is_empty &= page.lines.is_empty();
        for line in page.lines {
            print(line.get())?;
        }
        match page.next {
            Some(next) => from = next,
            None => {
                if is_empty {
                    output::message("no lines");
                }
                dropped(page.dropped);
                return Ok(());
            }
        }
    }
}
