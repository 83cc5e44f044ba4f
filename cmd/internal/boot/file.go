package boot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// fileValue is the value of one option in the config file.
type fileValue struct {
	texts  []string
	origin string // file:line; empty if the file does not name the option
}

// readFile reads the config file, which is YAML or JSON. An entry that cannot be used is a problem, reported with its line.
func (t *table) readFile(path string, found *Problems) map[*option]fileValue {
	values := map[*option]fileValue{}
	if path == "" {
		return values
	}
	root, err := parseFile(path)
	if err != nil {
		found.Add("config", "reading the file: %w", err)
		return values
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		origin := fmt.Sprintf("%s:%d", filepath.Base(path), key.Line)
		o, err := t.lookup(key.Value)
		if err != nil {
			found.add(key.Value, origin, err)
			continue
		}
		if first := values[o].origin; first != "" {
			found.add(o.name, origin, fmt.Errorf("is set twice, first at %s", first))
			continue
		}
		texts, err := nodeTexts(o, node)
		if err != nil {
			found.add(o.name, origin, err)
			continue
		}
		values[o] = fileValue{texts, origin}
	}
	return values
}

// parseFile returns the top-level mapping of a file; an empty file is an empty mapping.
func parseFile(path string) (*yaml.Node, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return &yaml.Node{}, nil
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is more after the first document", filepath.Base(path))
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: want keys and values, got %s", filepath.Base(path), root.Line, nodeName(root))
	}
	return root, nil
}

// lookup finds the option that a key of the file sets.
func (t *table) lookup(key string) (*option, error) {
	o := t.byName[key]
	switch {
	case o == nil:
		return nil, fmt.Errorf("unknown setting%s", t.didYouMean(key, ""))
	case o.refused != "":
		return nil, fmt.Errorf("is not supported: %s", o.refused)
	case o.group == builtinGroup:
		return nil, errors.New("cannot be set in a file")
	}
	return o, nil
}

// nodeTexts returns the texts to parse, after a strict check of the YAML type: YAML guesses types (a version becomes a
// number, an empty value null), and an error is better than such a guess.
func nodeTexts(o *option, node *yaml.Node) ([]string, error) {
	node = resolveAlias(node)
	if !isList(o.kind) || node.Kind == yaml.ScalarNode {
		if err := checkScalar(o, node); err != nil {
			return nil, err
		}
		return []string{node.Value}, nil
	}
	if node.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("want a list, got %s", nodeName(node))
	}
	texts := make([]string, len(node.Content))
	for i, item := range node.Content {
		item = resolveAlias(item)
		if err := checkScalar(o, item); err != nil {
			return nil, fmt.Errorf("item %d: %w", i+1, err)
		}
		texts[i] = item.Value
	}
	return texts, nil
}

// resolveAlias returns the node that an alias refers to, or the node itself.
func resolveAlias(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func checkScalar(o *option, node *yaml.Node) error {
	want, tags := scalarTags(o)
	if node.Kind == yaml.ScalarNode && strings.Contains(tags, node.ShortTag()+" ") {
		return nil
	}
	return fmt.Errorf("want %s, got %s", want, nodeName(node))
}

// scalarTags describes how a value of the option is written in a file, and lists the YAML tags that it may have.
func scalarTags(o *option) (want, tags string) {
	kind := o.kind
	if isList(kind) {
		kind = kind.Elem()
	}
	switch defaultArg(kind) {
	case "DURATION":
		return "a duration like 30s", "!!str "
	case "":
		return "true or false", "!!bool "
	case "NUMBER":
		if kind.Kind() == reflect.Float64 {
			return "a number", "!!int !!float "
		}
		return "a whole number", "!!int "
	}
	if readsText(kind) {
		return "one value", "!!str !!int !!float !!bool "
	}
	return "text (put it in quotes)", "!!str "
}

// nodeName describes a node for an error message.
func nodeName(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "keys and values"
	case yaml.SequenceNode:
		return "a list"
	}
	switch node.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!str":
		return fmt.Sprintf("the text %q", node.Value)
	case "!!bool":
		return "the switch value " + node.Value
	case "!!int", "!!float":
		return "the number " + node.Value
	default:
		return "the value " + node.Value
	}
}

// writeEffective prints the configuration as a file that would yield the same configuration. Each value that is not a
// default has its origin in a comment.
func (t *table) writeEffective(w io.Writer) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, o := range t.options {
		if o.inert() || o.group == builtinGroup {
			continue
		}
		key := &yaml.Node{Kind: yaml.ScalarNode, Value: o.name}
		root.Content = append(root.Content, key, o.node())
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return fmt.Errorf("printing the configuration: %w", err)
	}
	return Exit{Code: CodeOK}
}

// node returns the option's value as a YAML node.
func (o *option) node() *yaml.Node {
	node := valueNode(o.value)
	node.LineComment = o.origin
	return node
}

func valueNode(v reflect.Value) *yaml.Node {
	node := &yaml.Node{}
	switch {
	case isList(v.Type()):
		node.Kind, node.Style = yaml.SequenceNode, yaml.FlowStyle
		for i := range v.Len() {
			node.Content = append(node.Content, valueNode(v.Index(i)))
		}
	case v.Kind() == reflect.String || readsText(v.Type()):
		node.SetString(formatValue(v)) // quoted where YAML would read it as another type
	default:
		node.Kind, node.Value = yaml.ScalarNode, formatValue(v)
	}
	return node
}
