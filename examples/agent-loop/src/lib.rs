//! A conversation with a model that may use a tool. It goes on for days, through restarts; no answer is paid for twice.

use onemark_sdk::prelude::*;
use onemark_sdk::{Within, continue_as_new, set_tag, stream};
use serde_json::{Value, json};

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Message {
    pub text: String,
}

/// What was said, by whom.
#[derive(Serialize, Deserialize, JsonSchema, Clone)]
pub struct Turn {
    pub who: String,
    pub text: String,
}

/// What the model wants to do next.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Move {
    Say(String),
    Look(String),
}

const SILENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// More than this a model would not read anyway, and the journal of one run stays short.
const TURNS_OF_A_RUN: usize = 40;

/// Uses of the tool for one answer.
const LOOKS: usize = 5;

/// `heard` is what was said in the runs before this one, of which the last few turns are kept.
#[workflow(token = "chat:{chat}", hook = Message)]
pub async fn agent_loop(
    chat: String,
    model: String,
    heard: Option<Vec<Turn>>,
    so_far: Option<u64>,
) -> WorkflowResult<u64> {
    let mut turns = heard.unwrap_or_default();
    let (mut answers, began_with) = (so_far.unwrap_or(0), turns.len());
    let mut messages = start_hook::<Message>()?;
    loop {
        set_tag("state", "listens")?;
        let Within::Payload(message) = messages.next_within(SILENCE).await? else {
            return Ok(answers);
        };
        turns.push(Turn {
            who: "user".into(),
            text: message.text,
        });
        set_tag("state", "thinks")?;
        let answer = answer(&chat, answers, &mut turns, &model).await?;
        stream("answers").write(&answer)?;
        turns.push(Turn {
            who: "model".into(),
            text: answer,
        });
        answers += 1;

        if turns.len() - began_with >= TURNS_OF_A_RUN {
            let kept = turns.split_off(turns.len() - 10);
            // The token goes along, and the messages that were not read.
            return Err(continue_as_new(json!({
                "chat": chat, "model": model, "heard": kept, "so_far": answers
            })));
        }
    }
}

/// Asks the model until it says something, and looks up what it wants to know.
async fn answer(chat: &str, number: u64, turns: &mut Vec<Turn>, model: &str) -> WorkflowResult<String> {
    for look in 0..LOOKS {
        match think(chat, number, look, turns, model).await? {
            Move::Say(text) => return Ok(text),
            Move::Look(what) => {
                let found = look_up(&what, model).await?;
                turns.push(Turn {
                    who: "tool".into(),
                    text: found.to_string(),
                });
            }
        }
    }
    Ok("I could not find out.".into())
}

/// Paid for by the word. The key names the place in the conversation, so that the model's own records tell an attempt
/// that was cut off from a new question.
#[step(key = "{chat}:{number}:{look}", timeout = "2m")]
async fn think(
    chat: &str,
    number: u64,
    look: usize,
    turns: &[Turn],
    model: &str,
) -> Result<Move, StepFailed> {
    let _ = (chat, number, look);
    let thought: Move = outside::post(&format!("{model}/think"), turns).await?;
    if let Move::Say(text) = &thought {
        // Readers see the answer as it comes; another attempt writes none of it again.
        for word in text.split_inclusive(' ') {
            stream("words").write(word)?;
        }
    }
    Ok(thought)
}

#[step]
async fn look_up(what: &str, model: &str) -> Result<Value, StepFailed> {
    Ok(outside::get(&format!("{model}/facts/{what}"))
        .await?
        .unwrap_or_default())
}
