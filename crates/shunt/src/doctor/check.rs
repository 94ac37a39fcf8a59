//! What a check of `shunt doctor` found.

use serde::Serialize;

/// What a check found.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It works, with a limit that one should know.
    Warn,
    /// Connections stay on TCP.
    Fail,
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, found: found.into(), todo: None }
    }

    pub fn warn(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Check {
        Check { name, status: Status::Warn, found: found.into(), todo: Some(todo.into()) }
    }

    pub fn fail(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Check {
        Check { name, status: Status::Fail, found: found.into(), todo: Some(todo.into()) }
    }
}
