//! The two small languages inside string literals: durations and templates.

use syn::{Error, LitStr, Result};

/// Reads `1h30m` as milliseconds.
pub fn duration(literal: &LitStr) -> Result<u64> {
    milliseconds(&literal.value()).ok_or_else(|| {
        Error::new(
            literal.span(),
            "not a duration: write a number and a unit (`ms`, `s`, `m`, `h`, `d`), such as `\"500ms\"` or \
             `\"1h30m\"`",
        )
    })
}

fn milliseconds(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        rest = &rest[letters..];
        total = total.checked_add(number.checked_mul(unit)?)?;
    }
    (total > 0).then_some(total)
}

/// The parameters that a template such as `order:{order.id}` reads: the first name of each path.
pub fn template_parameters(literal: &LitStr) -> Result<Vec<String>> {
    parameters(&literal.value()).map_err(|message| Error::new(literal.span(), message))
}

fn parameters(template: &str) -> std::result::Result<Vec<String>, String> {
    if template.is_empty() {
        return Err("an empty template".into());
    }
    let mut parameters = Vec::new();
    let mut rest = template;
    while let Some(brace) = rest.find(['{', '}']) {
        let doubled = rest[brace..].starts_with("{{") || rest[brace..].starts_with("}}");
        if doubled {
            rest = &rest[brace + 2..];
            continue;
        }
        if rest[brace..].starts_with('}') {
            return Err("a `}` without its `{`; a brace itself is written `}}`".into());
        }
        let Some(length) = rest[brace..].find('}') else {
            return Err("a `{` without its `}`; a brace itself is written `{{`".into());
        };
        let path = &rest[brace + 1..brace + length];
        let parameter = match path.strip_prefix('/') {
            // A JSON pointer: its keys may hold anything.
            Some(pointer) => pointer.split('/').next().filter(|name| !name.is_empty()),
            None => {
                let mut names = path.split('.');
                let are_names = names.all(|name| !name.is_empty() && !name.contains(['{', ' ']));
                path.split('.').next().filter(|_| are_names)
            }
        };
        let Some(parameter) = parameter.filter(|_| !path.contains('{')) else {
            return Err(format!(
                "`{{{path}}}` is no path: write `{{parameter}}`, `{{parameter.field}}` or `{{/parameter/field}}`"
            ));
        };
        parameters.push(parameter.to_owned());
        rest = &rest[brace + length + 1..];
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let read = [
            ("500ms", 500),
            ("20s", 20_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
        ];
        for (text, length) in read {
            assert_eq!(milliseconds(text), Some(length), "{text}");
        }
        for text in [
            "",
            "20",
            "s",
            "20 s",
            "1.5h",
            "-1s",
            "0s",
            "1w",
            "99999999999999999999d",
            "1sm",
        ] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }

    #[test]
    fn templates() {
        assert_eq!(parameters("order:{order.id}/{n}").unwrap(), ["order", "n"]);
        assert_eq!(parameters("{{{a}}}").unwrap(), ["a"]);
        assert_eq!(parameters("{/event/order.id}/{/n}").unwrap(), ["event", "n"]);
        assert_eq!(parameters("plain {{}}").unwrap(), Vec::<String>::new());
        for template in [
            "", "{", "}", "{}", "{a", "{a.}", "{.a}", "{a b}", "{a{b}}", "{/}", "{//a}", "{/a{b}}",
        ] {
            assert!(parameters(template).is_err(), "{template}");
        }
    }
}
