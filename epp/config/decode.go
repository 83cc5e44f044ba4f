package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decoder fills Go values from YAML, by the yaml tags of their structs, like the yaml package, but strictly. It continues
// after a problem, so that it finds all of them.
type decoder struct{ found *findings }

var (
	nodeType     = reflect.TypeFor[yaml.Node]()
	durationType = reflect.TypeFor[time.Duration]()
)

// decode fills v, which must be settable, from n at path. Fields that the file does not have stay as they are.
func (d decoder) decode(n *yaml.Node, path string, v reflect.Value) {
	d.found.lines[path] = n.Line
	switch {
	case v.Type() == nodeType:
		v.Set(reflect.ValueOf(*n))
	case absent(n):
	case v.Kind() == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.decode(n, path, v.Elem())
	case d.decodeBySelf(n, path, v):
	case v.Type() == durationType:
		d.decodeDuration(n, path, v)
	default:
		d.decodeKind(n, path, v)
	}
}

// decodeBySelf uses a type's own decoding, if it has one.
func (d decoder) decodeBySelf(n *yaml.Node, path string, v reflect.Value) (done bool) {
	var err error
	switch self := v.Addr().Interface().(type) {
	case yaml.Unmarshaler:
		err = self.UnmarshalYAML(n)
	case encoding.TextUnmarshaler:
		if n.Kind != yaml.ScalarNode {
			d.mismatch(n, path, "one value")
			return true
		}
		err = self.UnmarshalText([]byte(n.Value))
	default:
		return false
	}
	d.complain(path, err)
	return true
}

// complain reports an error of a type that decodes itself, or of the yaml package.
func (d decoder) complain(path string, err error) {
	if several, ok := errors.AsType[*yaml.TypeError](err); ok {
		d.found.problem(path, "%s", strings.Join(several.Errors, "; "))
	} else if err != nil {
		d.found.problem(path, "%s", oneLine(err))
	}
}

func (d decoder) decodeDuration(n *yaml.Node, path string, v reflect.Value) {
	took, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" || err != nil {
		d.mismatch(n, path, "a duration like 30s")
		return
	}
	v.SetInt(int64(took))
}

func (d decoder) decodeKind(n *yaml.Node, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		d.decodeStruct(n, path, v)
	case reflect.Map:
		d.decodeMap(n, path, v)
	case reflect.Slice:
		d.decodeSlice(n, path, v)
	case reflect.Interface:
		d.decodeAny(n, path, v)
	default:
		d.decodeScalar(n, path, v)
	}
}

func (d decoder) decodeStruct(n *yaml.Node, path string, v reflect.Value) {
	fields := fieldsOf(v.Type(), nil)
	d.eachPair(n, path, func(key, value *yaml.Node, at string) {
		for _, f := range fields {
			if f.name == key.Value {
				d.decode(value, at, v.FieldByIndex(f.index))
				return
			}
		}
		if instead, ok := d.found.moved[at]; ok {
			d.found.problem(at, "%s", instead)
			return
		}
		names := make([]string, len(fields))
		for i, f := range fields {
			names[i] = f.name
		}
		d.found.problem(at, "unknown field%s", d.found.nearest(key.Value, names))
	})
}

func (d decoder) decodeMap(n *yaml.Node, path string, v reflect.Value) {
	all := reflect.MakeMap(v.Type())
	d.eachPair(n, path, func(key, value *yaml.Node, at string) {
		k, one := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		d.decode(key, at, k)
		d.decode(value, at, one)
		all.SetMapIndex(k, one)
	})
	v.Set(all)
}

// eachPair calls visit for each key of a mapping, once.
func (d decoder) eachPair(n *yaml.Node, path string, visit func(key, value *yaml.Node, at string)) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, path, "keys and values")
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			d.found.problem(path, "a key is %s, want a name", nodeName(key))
			continue
		}
		at := join(path, key.Value)
		if first, twice := lines[key.Value]; twice {
			d.found.lines[at] = key.Line
			d.found.problem(at, "is set twice, first in line %d", first)
			continue
		}
		lines[key.Value] = key.Line
		d.found.lines[at] = key.Line
		visit(key, value, at)
		d.found.lines[at] = key.Line // the line of the key, even if the value begins below
	}
}

func (d decoder) decodeSlice(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.mismatch(n, path, "a list")
		return
	}
	all := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		if absent(item) {
			d.found.lines[at] = item.Line
			d.found.problem(at, "is empty")
			continue
		}
		d.decode(item, at, all.Index(i))
	}
	v.Set(all)
}

func (d decoder) decodeAny(n *yaml.Node, path string, v reflect.Value) {
	d.complain(path, n.Decode(v.Addr().Interface()))
}

func (d decoder) decodeScalar(n *yaml.Node, path string, v reflect.Value) {
	want, tags := scalarTags(v.Kind())
	if n.Kind != yaml.ScalarNode || !strings.Contains(tags, n.ShortTag()+" ") {
		d.mismatch(n, path, want)
		return
	}
	if v.Kind() == reflect.String { // text that looks like a date has a tag of its own
		v.SetString(n.Value)
		return
	}
	if err := n.Decode(v.Addr().Interface()); err != nil {
		d.found.problem(path, "%s does not fit in %s", nodeName(n), want)
	}
}

// scalarTags returns what a value of a kind is called in messages, and the YAML tags that it may have.
func scalarTags(kind reflect.Kind) (want, tags string) {
	switch kind {
	case reflect.Bool:
		return "true or false", "!!bool "
	case reflect.String:
		return "text (put it in quotes)", "!!str !!timestamp "
	case reflect.Float32, reflect.Float64:
		return "a number", "!!int !!float "
	default:
		return "a whole number", "!!int "
	}
}

func (d decoder) mismatch(n *yaml.Node, path, want string) {
	d.found.problem(path, "want %s, got %s", want, nodeName(n))
}

// field is a field of a struct with its name in files.
type field struct {
	name  string
	index []int
}

// fieldsOf lists the fields of a struct, those of inlined structs included, by the rules of the yaml package.
func fieldsOf(t reflect.Type, outer []int) (fields []field) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		index := append(outer[:len(outer):len(outer)], i)
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case strings.Contains(options, "inline") && f.Type.Kind() == reflect.Struct:
			fields = append(fields, fieldsOf(f.Type, index)...)
		case name == "":
			fields = append(fields, field{strings.ToLower(f.Name), index})
		default:
			fields = append(fields, field{name, index})
		}
	}
	return fields
}

// join returns the path of a key in the mapping at path.
func join(path, key string) string {
	switch {
	case key == "" || strings.ContainsAny(key, ".[]\"\n ") || len(key) > 80:
		return path + "[" + strconv.Quote(key[:min(len(key), 80)]) + "]"
	case path == "":
		return key
	default:
		return path + "." + key
	}
}
