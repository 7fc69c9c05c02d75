//! What to do about an error of the server, in words of the command line: the server's own hints speak of requests.

/// By the error's code; `None` where the server's hint, if it has one, is as good here.
pub fn of(code: &str) -> Option<&'static str> {
    Some(match code {
        "unknown_route" | "method_not_allowed" | "wrong_content_type" => {
            "the server may be of another version than this program; `onemark --version` says which this is"
        }
        "unknown_workflow" => "`onemark workflows` lists what is deployed; `onemark deploy` adds to it",
        "workflow_ambiguous" => "name the workflow as DEPLOYMENT/WORKFLOW",
        "invalid_input" => "`onemark workflows NAME` shows the schema of the input",
        "invalid_event" => "`onemark workflows NAME` shows the schema of a workflow's input",
        "invalid_payload" => "`onemark workflows NAME` shows the schema of what the workflow's hook takes",
        "unknown_component" => {
            "deploy it with `onemark deploy FILE --name NAME`; `onemark workflows` lists what is there"
        }
        "hook_conflict" => {
            "`onemark deliver` reaches the run that holds it; `onemark start --on-conflict` says what else may happen"
        }
        "unkeyed_steps" => "look at the steps, then say `--yes`, or give them keys made from data",
        "does_not_replay" => {
            "mend the component, fork the run at an earlier entry (`onemark runs fork`), or say `--force`"
        }
        "entry_not_found" => "`onemark journal RUN` lists the entries",
        "run_not_found" => "`onemark runs list` lists the runs",
        "hook_not_found" => "`onemark runs show RUN` lists the hooks of a run",
        "schedule_not_found" => "`onemark schedules list` lists them; the name is DEPLOYMENT/WORKFLOW",
        "blocked_otherwise" | "blocked_elsewhere" => "`onemark runs show RUN` says what to do",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each hint of the server that speaks of requests has one for the command line. Codes stand before their hints.
    #[test]
    fn no_hint_speaks_of_requests() {
        let source = include_str!("../api/error.rs");
        let speaks_of_requests = [
            "`GET ",
            "`POST ",
            "`PUT ",
            "`DELETE ",
            "%2F",
            ": true`",
            "the header",
            "DEPLOY_FIRST)",
        ];
        let is_code =
            |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let (mut code, mut in_const, mut found) = (None, false, 0);
        for line in source.lines().filter(|line| !line.trim_start().starts_with("//")) {
            // `new(S::NOT_FOUND, "code")`, or `Self::new(StatusCode::NOT_FOUND, "code", message)`
            if line.contains("S::") || line.contains("StatusCode::") {
                code = line.split('"').nth(1).filter(is_code).or(code);
            }
            in_const |= line.starts_with("const ");
            if !in_const && speaks_of_requests.iter().any(|words| line.contains(words)) {
                found += 1;
                let code = code.expect("a code before the hint");
                let hint = of(code).unwrap_or_else(|| panic!("`{code}` has no hint of its own"));
                assert!(
                    !speaks_of_requests.iter().any(|words| hint.contains(words)),
                    "{hint}"
                );
            }
            in_const &= !line.ends_with(';');
        }
        assert!(found > 10, "hints are no longer found: {found}");
    }
}
