package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxSize is the largest configuration that is read, in bytes: as much as a ConfigMap can hold.
const MaxSize = 1 << 20

// Limits of a file after its aliases were replaced.
const (
	maxNodes = 100_000
	maxDepth = 64
)

// parseTree reads the only YAML or JSON document in data, which must be a mapping, and replaces aliases. The error is
// Problems.
func parseTree(data []byte) (*yaml.Node, error) {
	if len(data) > MaxSize {
		return nil, problemAt(0, "the configuration is larger than %d bytes", MaxSize)
	}
	if at := invalidUTF8(data); at >= 0 {
		return nil, problemAt(1+bytes.Count(data[:at], []byte("\n")), "the text is not UTF-8")
	}
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, problemAt(0, "the configuration is empty")
	} else if err != nil {
		return nil, tidy(err)
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, problemAt(second.Line, "a second document begins here; one file holds one configuration")
	}
	switch root := doc.Content[0]; {
	case absent(root):
		return nil, problemAt(0, "the configuration is empty")
	case root.Kind != yaml.MappingNode:
		return nil, problemAt(root.Line, "want keys and values, got %s", nodeName(root))
	}
	e := expander{left: maxNodes}
	return e.expand(doc.Content[0], maxDepth)
}

func invalidUTF8(data []byte) int {
	for at := 0; at < len(data); {
		r, n := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && n == 1 {
			return at
		}
		at += n
	}
	return -1
}

// problemAt returns a problem of the file as a whole; line 0 = no certain line.
func problemAt(line int, format string, args ...any) error {
	return Problems{{Line: line, Message: fmt.Sprintf(format, args...)}}
}

// tidy rewrites an error of the YAML parser in our form.
func tidy(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var line int
	if n, _ := fmt.Sscanf(text, "line %d:", &line); n == 1 {
		_, text, _ = strings.Cut(text, ": ")
	}
	return problemAt(line, "this is neither YAML nor JSON: %s", text)
}

// expander copies a tree and replaces aliases. It stops at a file that would make it copy without end: anchors of anchors,
// and anchors that contain themselves.
type expander struct{ left int }

func (e *expander) expand(n *yaml.Node, depth int) (*yaml.Node, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case depth == 0:
		return nil, problemAt(n.Line, "values lie deeper than %d in one another", maxDepth)
	case e.left == 0:
		return nil, problemAt(n.Line, "there are more than %d values, those of aliases included", maxNodes)
	}
	e.left--
	twin := *n
	twin.Anchor, twin.Content = "", slices.Clone(n.Content)
	for i, child := range twin.Content {
		var err error
		if twin.Content[i], err = e.expand(child, depth-1); err != nil {
			return nil, err
		}
	}
	return &twin, nil
}

// otherKind returns an error if the file is another kind of document, whose unknown fields need not be listed.
func otherKind(root *yaml.Node) error {
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Value != "kind" || value.Kind != yaml.ScalarNode || value.Value == kind || value.Value == "" {
			continue
		}
		hint := ""
		if value.Value == "ConfigMap" {
			hint = "; the configuration is one of the texts in its data"
		}
		return Problems{{key.Line, "kind", fmt.Sprintf("want %s, got %s%s", kind, quote(value.Value), hint)}}
	}
	return nil
}

// nodeName returns what a node is, for an error message.
func nodeName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "keys and values"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!str":
		return "the text " + quote(n.Value)
	case "!!bool":
		return "the switch value " + n.Value
	case "!!int", "!!float":
		return "the number " + n.Value
	default:
		return "the value " + quote(n.Value)
	}
}

// absent reports whether a value is empty: "key:" is the same as no key.
func absent(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
