package config

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// everything has a field of every kind that parameters may have.
type everything struct {
	Text     string         `yaml:"text"`
	Small    int8           `yaml:"small"`
	Count    uint           `yaml:"count"`
	Ratio    float64        `yaml:"ratio"`
	On       bool           `yaml:"on"`
	Wait     time.Duration  `yaml:"wait"`
	List     []string       `yaml:"list"`
	Numbers  map[string]int `yaml:"numbers"`
	Pointer  *float32       `yaml:"pointer"`
	Any      any            `yaml:"any"`
	Inner    inner          `yaml:"inner"`
	Inners   []inner        `yaml:"inners"`
	Addr     netip.Addr     `yaml:"addr"`
	Port     port           `yaml:"port"`
	Skipped  string         `yaml:"-"`
	Untagged int
	inlined  `yaml:",inline"`
	Shown    `yaml:",inline"`
}

type inner struct {
	Deep string `yaml:"deep"`
}

type inlined struct {
	Flat string `yaml:"flat"`
}

type Shown struct {
	Seen string `yaml:"seen"`
}

// port takes a number or a text.
type port string

func (p *port) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode || n.Value == "0" {
		return errors.New("want a port")
	}
	*p = port(n.Value)
	return nil
}

// decodeEverything decodes into defaults that nothing of the input may change by being absent.
func decodeEverything(t *testing.T, text string) (everything, *findings) {
	t.Helper()
	root, err := parseTree([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	v, found := everything{Text: "default", List: []string{"a", "b"}}, newFindings()
	decoder{found}.decode(root, "", reflect.ValueOf(&v).Elem())
	return v, found
}

// TestDecodeLikeYAML: a document without mistakes is decoded as by the yaml package.
func TestDecodeLikeYAML(t *testing.T) {
	tests := map[string]string{
		"scalars":           "{text: x, small: -3, count: 7, ratio: 2, on: true, wait: 1m30s, untagged: 9}",
		"written otherwise": "{text: 'y', small: 0x10, ratio: 1e3, on: True, wait: \"5ms\"}",
		"texts":             "text: |\n  two\n  lines\n",
		"a date":            "text: 2026-01-02",
		"not a number":      "ratio: .inf",
		"lists":             "{list: [c], inners: [{deep: x}, {}]}",
		"an empty list":     "list: []",
		"maps":              "{numbers: {one: 1, two words: 2, a.b/c: 3}, inner: {deep: x}}",
		"anything":          "any: {a: [1, x, {b: null}]}",
		"pointer":           "pointer: 1.5",
		"by themselves":     "{addr: 10.0.0.1, port: 8000}",
		"inlined":           "{flat: x, seen: y}",
		"aliases":           "{inner: &i {deep: x}, inners: [*i, *i]}",
		"nothing":           "{text: , list: null, pointer: ~}",
		"no keys":           "{}",
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			got, found := decodeEverything(t, text)
			if err := found.err(); err != nil {
				t.Fatal(err)
			}
			want := everything{Text: "default", List: []string{"a", "b"}}
			dec := yaml.NewDecoder(strings.NewReader(text))
			dec.KnownFields(true)
			if err := dec.Decode(&want); err != nil {
				t.Fatal(err)
			}
			if name == "nothing" {
				want = everything{Text: "default", List: []string{"a", "b"}} // as JSON has it: null says nothing
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestDecodeProblems(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"text is a number", "text: 5", "line 1: text: want text (put it in quotes), got the number 5"},
		{"text is a list", "text: [a]", "line 1: text: want text (put it in quotes), got a list"},
		{"number is a text", "small: '5'", `line 1: small: want a whole number, got the text "5"`},
		{"number has a fraction", "small: 1.5", "line 1: small: want a whole number, got the number 1.5"},
		{"number does not fit", "small: 200", "line 1: small: the number 200 does not fit in a whole number"},
		{"number has a sign", "count: -1", "line 1: count: the number -1 does not fit in a whole number"},
		{"real is a switch", "ratio: yes please", `line 1: ratio: want a number, got the text "yes please"`},
		{"switch is a text", "'on': 'true'", `line 1: on: want true or false, got the text "true"`},
		{"duration is a number", "wait: 5", "line 1: wait: want a duration like 30s, got the number 5"},
		{"duration is a text", "wait: soon", `line 1: wait: want a duration like 30s, got the text "soon"`},
		{"list is a scalar", "list: a", `line 1: list: want a list, got the text "a"`},
		{"list has a hole", "list:\n  - a\n  -\n", "line 3: list[1]: is empty"},
		{"list has a number", "list:\n  - a\n  - 5\n", "line 3: list[1]: want text (put it in quotes), got the number 5"},
		{"map is a list", "numbers: [1]", "line 1: numbers: want keys and values, got a list"},
		{"map has a text", "numbers:\n  a.b: x", `line 2: numbers["a.b"]: want a whole number, got the text "x"`},
		{"key is a list", "numbers: {[a]: 1}", "line 1: numbers: a key is a list, want a name"},
		{"unknown field", "txet: x", `line 1: txet: unknown field; did you mean "text"?`},
		{"unknown inside", "inners:\n  - deep: x\n  - depp: x", `line 3: inners[1].depp: unknown field; did you mean "deep"?`},
		{"skipped field", "skipped: x", "line 1: skipped: unknown field"},
		{"twice", "text: a\nlist: []\ntext: b", "line 3: text: is set twice, first in line 1"},
		{"twice in a map", "numbers: {a: 1, a: 1}", "line 1: numbers.a: is set twice, first in line 1"},
		{"twice inside anything", "any: {a: 1, a: 1}", `line 1: any: line 1: mapping key "a" already defined at line 1`},
		{"a foreign tag", "text: !secret x", `line 1: text: want text (put it in quotes), got the value "x"`},
		{"not an address", "addr: nowhere", "line 1: addr: ParseAddr("},
		{"an address is a list", "addr: [1]", "line 1: addr: want one value, got a list"},
		{"no port", "port: 0", "line 1: port: want a port"},
		{"a merge", "inner: &i {deep: x}\ninners: [{<<: *i}]", "line 2: inners[0].<<: unknown field"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, found := decodeEverything(t, test.text)
			if err := found.err(); err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestTreeBounds(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"too large", strings.Repeat("#", MaxSize+1), "the configuration is larger than 1048576 bytes"},
		{"as large as can be", "a: " + strings.Repeat("b", MaxSize-3), ""},
		{"too deep", "a: " + strings.Repeat("[", 70) + strings.Repeat("]", 70), "line 1: values lie deeper than 64 in one another"},
		{"too many", "a: [" + strings.Repeat("1,", maxNodes) + "]", "line 1: there are more than 100000 values, those of aliases included"},
		{"an anchor that is not there", "a: *b", "this is neither YAML nor JSON: unknown anchor 'b' referenced"},
		{"only a comment", "# nothing\n", "the configuration is empty"},
		{"an empty document", "---\n", "the configuration is empty"},
		{"a broken second document", "a: 1\n---\n[", "a second document begins here; one file holds one configuration"},
		{"tabs", "a:\n\t- b", "line 2: this is neither YAML nor JSON: found character that cannot start any token"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := parseTree([]byte(test.text))
			if got := errorText(err); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
