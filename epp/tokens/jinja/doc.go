// Package jinja renders chat templates as Python's Jinja2 does with the settings of Hugging Face's transformers: blocks are trimmed, tojson
// keeps the order of members, and templates cannot change what they are given.
//
// The text of a template enters Parse, JSON enters Decode, and Template.Render returns text. The work and the output of a rendering are
// bounded, which no Go library for Jinja does; those also lose the order of members, which changes the token ids of every tool.
//
// It is a part of Jinja: what chat templates use. Statements, filters, tests and methods beyond that are errors, never another text, so a
// caller can let an engine render instead. There are no includes, no inheritance, no recursive loops, no formatting of strings.
//
// The package knows nothing of requests: epp/tokens/chat does.
package jinja
