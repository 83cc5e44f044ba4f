package tandem_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// bannedWords matches what docs/glossary.md replaces by a plain term: pronouns that hide the actor, and metaphors for code.
// "Room" stays for space, so only its uses for a package are matched. The words are put together so that this file does not
// match itself.
var bannedWords = regexp.MustCompile(`\b(` + strings.Join([]string{
	"[Nn]o" + "body", "(?i)some" + "body", "any" + "body", "every" + "body", "who" + "ever", "whom" + "ever", "who" + " only", "whol" + "ly",
	"(give|gives|gave|given|giving) " + "back",
	"front" + "[ -]doors?", "cre" + "ws?", "erra" + "nds?", "work" + "shops?", "cal" + "m", "in" + "sists?",
	"roo" + "ms", "(a|another|each|every|this|its) " + "room",
}, "|") + `)\b`)

// wordsToCome are the folders whose texts have not been rewritten yet. The list only shrinks.
var wordsToCome = []string{"sidecar"}

// wordsIn tells whether the rule for words holds for a file: for what people wrote in words, other than the page that lists
// the banned ones.
func wordsIn(file string) bool {
	switch {
	case file == "docs/glossary.md", inTestdata(file), slices.Contains(wordsToCome, path.Dir(file)):
		return false
	}
	written := []string{".go", ".md", ".yaml", ".yml", ".json", ".tpl", ".sh"}
	return slices.Contains(written, path.Ext(file)) || fits(path.Dir(file), ".ci…") || slices.Contains([]string{"Makefile", "Dockerfile"}, path.Base(file))
}

func checkWords(h house) []string { return grep(h, bannedWords, wordsIn) }
