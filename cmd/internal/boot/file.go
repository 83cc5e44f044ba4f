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

// fileValue is what the config file says about one option.
type fileValue struct {
	texts  []string
	origin string // file:line; empty if the file does not name the option
}

// readFile reads the config file, JSON being YAML too. What it cannot use is a
// problem with the line it stands in.
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

// parseFile gives the top-level mapping of a file; an empty file is an empty
// mapping.
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
		return nil, fmt.Errorf("is not taken: %s", o.refused)
	case o.group == builtinGroup:
		return nil, errors.New("cannot be set in a file")
	}
	return o, nil
}

// nodeTexts gives the texts to parse, after a check of the YAML type: strict,
// because YAML's own guesses (a version that became a number, an empty value)
// are better answered at once.
func nodeTexts(o *option, node *yaml.Node) ([]string, error) {
	node = meant(node)
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
		item = meant(item)
		if err := checkScalar(o, item); err != nil {
			return nil, fmt.Errorf("item %d: %w", i+1, err)
		}
		texts[i] = item.Value
	}
	return texts, nil
}

// meant follows an alias to what it stands for.
func meant(node *yaml.Node) *yaml.Node {
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

// scalarTags names what a value of the option looks like in a file, and lists
// the YAML tags that may stand for it.
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

// nodeName says what a node is, for an error message.
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

// writeEffective prints the configuration as a file that would give the same,
// each value that is not a default with its origin, and ends the program.
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

// node is the option's value as it would stand in a file.
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
		node.SetString(formatValue(v)) // quoted where it would read as something else
	default:
		node.Kind, node.Value = yaml.ScalarNode, formatValue(v)
	}
	return node
}
