package tandem_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// bannedWords matches what docs/glossary.md replaces by a plain term: pronouns that hide the actor, and metaphors for code.
// "Room" stays for space, so only its uses for a package are matched. The words are put together so that this file does not
// match itself. All but the first are matched in any case: http.NoBody is an identifier.
var bannedWords = pattern{regexp.MustCompile(`\b([Nn]o` + "body" + `|(?i:` + strings.Join([]string{
	"some" + "body", "any" + "body", "every" + "body", "who" + "ever", "whom" + "ever", "who" + " only", "whol" + "ly",
	"(give|gives|gave|given|giving) " + "back",
	"front" + "[ -]doors?", "cre" + "ws?", "erra" + "nds?", "work" + "shops?", "cal" + "m", "in" + "sists?",
	"roo" + "ms", "(a|another|each|every|this|its) " + "room",
}, "|") + `))\b`), []string{
	"o" + "body", "e" + "body", "y" + "body", "who" + "ever", "whom" + "ever", "who" + " only", "whol" + "ly",
	"give " + "back", "gives " + "back", "gave " + "back", "given " + "back", "giving " + "back",
	"front" + " door", "front" + "-door", "cre" + "w", "erra" + "nd", "work" + "shop", "cal" + "m", "in" + "sist", "roo" + "m",
}}

// wordsIn reports whether the rule for words applies to a file: to all text files but test data and the glossary, which lists
// the banned words.
func wordsIn(file string) bool {
	if file == "docs/glossary.md" || inTestdata(file) {
		return false
	}
	written := []string{".go", ".md", ".yaml", ".yml", ".json", ".tpl", ".sh"}
	return slices.Contains(written, path.Ext(file)) || fits(path.Dir(file), ".ci…") || slices.Contains([]string{"Makefile", "Dockerfile"}, path.Base(file))
}

func checkWords(h house) []string { return grep(h, bannedWords, wordsIn) }
