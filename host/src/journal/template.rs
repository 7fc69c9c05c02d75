//! `order:{order.id}`: names made from data.

use serde_json::Value;

/// A text with `{path}` holes that a JSON input fills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Path(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("template `{0}` has a brace without its partner; write `{{{{` or `}}}}` for a brace itself")]
    Unbalanced(String),
    #[error("template `{0}` has an empty path between braces")]
    EmptyPath(String),
    #[error("the input has no `{path}`, which the template needs")]
    Missing { path: String },
    #[error("`{path}` in the input is {found}; the template needs a string, number or boolean")]
    NotScalar { path: String, found: &'static str },
}

/// The keys of `order.id`, or of the JSON pointer `/order/id` (RFC 6901), which reaches keys with dots in them.
fn keys(path: &str) -> Vec<String> {
    match path.trim().strip_prefix('/') {
        Some(pointer) => {
            let unescaped = |key: &str| key.replace("~1", "/").replace("~0", "~");
            pointer.split('/').map(unescaped).collect()
        }
        None => path.split('.').map(|key| key.trim().to_owned()).collect(),
    }
}

impl Template {
    /// # Errors
    /// When braces do not pair up or a path is empty.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '{' if chars.next_if_eq(&'{').is_some() => plain.push('{'),
                '}' if chars.next_if_eq(&'}').is_some() => plain.push('}'),
                '}' => return Err(TemplateError::Unbalanced(text.into())),
                '{' => {
                    let mut path = String::new();
                    loop {
                        match chars.next() {
                            Some('}') => break,
                            Some(c) if c != '{' => path.push(c),
                            _ => return Err(TemplateError::Unbalanced(text.into())),
                        }
                    }
                    let path = keys(&path);
                    if path.iter().any(String::is_empty) {
                        return Err(TemplateError::EmptyPath(text.into()));
                    }
                    if !plain.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    }
                    pieces.push(Piece::Path(path));
                }
                c => plain.push(c),
            }
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Self(pieces))
    }

    /// # Errors
    /// When the input lacks a path, or holds null, an array or an object there.
    pub fn render(&self, input: &Value) -> Result<String, TemplateError> {
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Path(path) => {
                    let found = path.iter().try_fold(input, |value, key| match value {
                        Value::Array(items) => key.parse().ok().and_then(|i: usize| items.get(i)),
                        value => value.get(key),
                    });
                    let path = || path.join(".");
                    match found {
                        None => return Err(TemplateError::Missing { path: path() }),
                        Some(Value::String(text)) => out.push_str(text),
                        Some(Value::Number(n)) => out.push_str(&n.to_string()),
                        Some(Value::Bool(b)) => out.push_str(if *b { "true" } else { "false" }),
                        Some(Value::Null) => {
                            return Err(TemplateError::NotScalar {
                                path: path(),
                                found: "null",
                            });
                        }
                        Some(Value::Array(_)) => {
                            return Err(TemplateError::NotScalar {
                                path: path(),
                                found: "an array",
                            });
                        }
                        Some(Value::Object(_)) => {
                            return Err(TemplateError::NotScalar {
                                path: path(),
                                found: "an object",
                            });
                        }
                    }
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn renders_paths_and_braces() {
        let input = json!({"order": {"id": "42", "lines": [{"n": 7}]}, "vip": true, "a.b": {"c/d~": 1}});
        for (template, text) in [
            ("order:{order.id}", "order:42"),
            ("{order.lines.0.n}/{vip}", "7/true"),
            ("{{{vip}}}", "{true}"),
            ("{/order/lines/0/n}/{/a.b/c~1d~0}", "7/1"),
            ("plain", "plain"),
        ] {
            assert_eq!(Template::parse(template).unwrap().render(&input).unwrap(), text);
        }
    }

    #[test]
    fn refuses_what_it_cannot_fill() {
        for bad in ["{", "}", "{a", "{a{b}}", "{}", "{a..b}"] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
        let input = json!({"a": null, "b": [], "c": {}});
        for bad in ["{a}", "{b}", "{c}", "{d}", "{b.0}", "{a.x}"] {
            assert!(Template::parse(bad).unwrap().render(&input).is_err(), "{bad}");
        }
    }
}
