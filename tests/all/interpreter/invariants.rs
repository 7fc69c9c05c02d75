//! What holds for every run, however its host was treated.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use onemark::engine::Verdict;
use onemark::journal::{CallNo, Entry, Event, RunStatus};
use onemark::store::{HookState, RunInfo};
use serde_json::Value;

use super::drive::{Drive, all_runs, payload};

pub async fn hold(drive: &Drive) {
    let host = &drive.host;
    let runs = all_runs(host).await;
    let status: HashMap<_, _> = runs.iter().map(|run| (&run.id, run.status)).collect();
    let mut owners = BTreeMap::new();
    let mut received = HashMap::new();
    let mut children = BTreeSet::new();
    for run in &runs {
        let journal = host.journal(&run.id).await;
        one_history(run, &journal);
        saved_once(run, &journal);
        for hook in host.engine.hooks_of(&run.id).await.expect("hooks can be listed") {
            if hook.state != HookState::Freed {
                *owners.entry(hook.token.clone()).or_insert(0) += 1;
            }
            let payloads = payloads_of(&journal, hook.hook);
            let name = hook.token.to_string();
            for (n, got) in payloads.iter().enumerate() {
                assert_eq!(*got, payload(&name, n as u32), "payloads of {name} in order");
            }
            *received.entry(name).or_insert(0) += payloads.len() as u32;
        }
        for entry in &journal {
            match &entry.event {
                Event::ChildStarted { run: child, call, .. } => {
                    assert!(children.insert(child.clone()), "{child} was started twice");
                    let told = journal.iter().find_map(|entry| match entry.event {
                        Event::ChildEnded { call: of, status } if of == *call => Some(status),
                        _ => None,
                    });
                    assert!(
                        told.is_none_or(|told| status.get(child) == Some(&told)),
                        "{child}"
                    );
                }
                Event::Emitted { runs, .. } => {
                    for started in runs {
                        assert!(children.insert(started.clone()), "{started} was started twice");
                    }
                }
                _ => {}
            }
        }
        let report = host
            .engine
            .replay(&run.id, None)
            .await
            .expect("it can be replayed");
        assert_eq!(report.verdict, Verdict::Agrees, "{report:?}");
        assert!(report.calls.iter().all(|call| call.matched), "{report:?}");
        assert_eq!(host.journal(&run.id).await, journal, "a replay writes nothing");
    }
    assert_eq!(
        children.len() + 1,
        runs.len(),
        "every run but one was started by another"
    );
    assert!(owners.values().all(|owners| *owners == 1), "{owners:?}");
    for (name, acknowledged) in drive.delivered() {
        assert_eq!(received.get(name), Some(acknowledged), "payloads of {name}");
    }
}

/// One dense order of entries, each of which may follow, and nothing after the end but freed tokens.
fn one_history(run: &RunInfo, journal: &[Entry]) {
    let mut status = None;
    let mut at = 0;
    for (n, entry) in journal.iter().enumerate() {
        assert_eq!(entry.seq, n as u64, "{}", run.id);
        assert!(entry.at >= at, "{}", run.id);
        at = entry.at;
        status = Some(RunStatus::next(status, &entry.event).expect("it may follow"));
    }
    assert_eq!(status, Some(run.status), "{}", run.id);
    let end = journal
        .iter()
        .position(|entry| ends(&entry.event))
        .expect("it has ended");
    let after = &journal[end + 1..];
    let freed = |entry: &Entry| matches!(entry.event, Event::HookDisposed { call: None, .. });
    assert!(after.iter().all(freed), "{}: {after:?}", run.id);
}

fn ends(event: &Event) -> bool {
    matches!(
        event,
        Event::Completed | Event::Failed | Event::Cancelled | Event::Terminated | Event::Continued { .. }
    )
}

/// Calls are dense, attempts are counted, and after an outcome comes no other and no attempt.
fn saved_once(run: &RunInfo, journal: &[Entry]) {
    let mut calls = BTreeSet::new();
    let mut attempts: HashMap<CallNo, u32> = HashMap::new();
    let mut completed = BTreeSet::new();
    for Entry { event, .. } in journal {
        if let Some(call) = event.made_by_call() {
            assert!(calls.insert(call), "call {call} of {} was made twice", run.id);
        }
        if let Event::AttemptStarted { call, attempt } = event {
            let before = attempts.insert(*call, *attempt).unwrap_or(0);
            assert_eq!(*attempt, before + 1, "call {call} of {}", run.id);
            assert!(!completed.contains(call), "call {call} of {} ran again", run.id);
        }
        let outcome = match event {
            Event::StepCompleted { call, .. }
            | Event::StepFailed { call, .. }
            | Event::TimerFired { call }
            | Event::ChildEnded { call, .. } => Some(call),
            _ => None,
        };
        if let Some(call) = outcome {
            assert!(completed.insert(*call), "call {call} of {} ended twice", run.id);
        }
    }
    let dense = calls.iter().zip(0..).all(|(call, n)| *call == n);
    assert!(dense, "{}: {calls:?}", run.id);
}

fn payloads_of(journal: &[Entry], of: u32) -> Vec<Value> {
    let received = journal
        .iter()
        .filter(|entry| matches!(entry.event, Event::PayloadReceived { hook } if hook == of));
    let read = received.map(|entry| {
        let body = entry.body.as_ref().expect("payloads have bodies");
        serde_json::from_str(body.text_or_null()).expect("payloads are JSON")
    });
    read.collect()
}
