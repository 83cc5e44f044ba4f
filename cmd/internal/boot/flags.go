package boot

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// defaultGroup is the heading of flags that are in no group.
const defaultGroup = "General"

// option is one row of the table that a config struct declares.
type option struct {
	name    string   // without dashes
	aliases []string // other spellings with the same meaning
	foreign []string // environment variables of another product that set it too
	group   string   // heading on the help page
	help    string
	arg     string // name of the value on the help page
	enum    []string
	refused string // not empty: the flag is known but not supported; the text names the replacement
	ignored string // not empty: the flag is accepted without effect; the text says why

	value    reflect.Value // invalid for refused and ignored options
	kind     reflect.Type
	fallback string   // text of the default
	raw      []string // as given on the command line
	origin   string   // where the value came from; empty for the default
}

// variable is an environment variable of another product that has no effect here.
type variable struct{ name, ignored string }

// names returns all spellings of o.
func (o *option) names() []string { return append([]string{o.name}, o.aliases...) }

// isSwitch reports whether the flag may stand without a value. A refused flag may, so that it is refused either way.
func (o *option) isSwitch() bool { return o.kind.Kind() == reflect.Bool || o.refused != "" }

// inert reports whether o is known only to be refused or ignored.
func (o *option) inert() bool { return o.refused != "" || o.ignored != "" }

// table holds every option of a program, in the order of declaration.
type table struct {
	options   []*option
	byName    map[string]*option
	variables []variable
	log       *Log // of the config struct, if it has one
}

// newTable builds the table that the given structs declare. It panics on a mistake in a declaration, because that is a bug
// in the program.
func newTable(structs ...any) *table {
	t := &table{byName: map[string]*option{}}
	for _, s := range structs {
		v := reflect.ValueOf(s)
		if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
			panic(fmt.Sprintf("boot: config is a %T, not a pointer to a struct", s))
		}
		t.walk(v.Elem(), defaultGroup)
	}
	return t
}

// walk adds the fields of a struct; a struct field without a flag tag is a
// group of its own.
func (t *table) walk(v reflect.Value, group string) {
	if log, ok := v.Addr().Interface().(*Log); ok {
		t.log = log
	}
	for i := range v.NumField() {
		field, tag := v.Type().Field(i), v.Type().Field(i).Tag
		name, tagged := tag.Lookup("flag")
		switch {
		case tagged:
			t.add(declare(name, group, field, v.Field(i)))
		case tag.Get("env") != "":
			t.variables = append(t.variables, declareVariable(field.Name, tag))
		case field.Type.Kind() == reflect.Struct && field.IsExported():
			heading := tag.Get("group")
			if heading == "" {
				heading = group
			}
			t.walk(v.Field(i), heading)
		}
	}
}

func declare(name, group string, field reflect.StructField, value reflect.Value) *option {
	tag := field.Tag
	o := &option{
		name: name, group: group, kind: field.Type,
		aliases: splitList(tag.Get("alias")), enum: splitList(tag.Get("enum")), foreign: splitList(tag.Get("env")),
		help: tag.Get("help"), arg: tag.Get("arg"),
		refused: tag.Get("refused"), ignored: tag.Get("ignored"),
	}
	if o.inert() {
		return o
	}
	if !field.IsExported() || !supported(field.Type) || o.help == "" {
		panic(fmt.Sprintf("boot: field %s of flag --%s needs to be exported, of a supported type, and to have a help tag", field.Name, name))
	}
	o.value = value
	o.fallback = formatValue(value)
	if o.arg == "" {
		o.arg = defaultArg(field.Type)
	}
	return o
}

// declareVariable reads the tags of a blank field without a flag.
func declareVariable(field string, tag reflect.StructTag) variable {
	v := variable{tag.Get("env"), tag.Get("ignored")}
	if field != "_" || v.ignored == "" {
		panic(fmt.Sprintf("boot: field %s of variable %s needs a flag, or to be blank and to have a tag ignored", field, v.name))
	}
	return v
}

func (t *table) add(o *option) {
	for _, name := range o.names() {
		if t.byName[name] != nil {
			panic(fmt.Sprintf("boot: flag --%s is declared twice", name))
		}
		t.byName[name] = o
	}
	t.options = append(t.options, o)
}

// nearest returns the option name most similar to the given one, or "" if none is similar enough.
func (t *table) nearest(name string) string {
	var names []string
	for _, o := range t.options {
		if !o.inert() {
			names = append(names, o.names()...)
		}
	}
	return Nearest(name, names)
}

// Nearest returns the candidate most similar to name, or "" if none is similar enough to be what the user meant.
func Nearest(name string, candidates []string) string {
	best, distance := "", max(2, len(name)/3)+1
	for _, candidate := range candidates {
		// At a distance equal to the length of name, the two have no letter in common.
		if d := editDistance(name, candidate); d < distance && d < len(name) {
			best, distance = candidate, d
		}
	}
	return best
}

// didYouMean returns the end of an error message about an unknown name.
func (t *table) didYouMean(name, dashes string) string {
	if near := t.nearest(name); near != "" {
		return ", did you mean " + dashes + near + "?"
	}
	return ""
}

// editDistance returns the Levenshtein distance of two names, in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// splitList splits a comma-separated list; empty text is an empty list.
func splitList(s string) []string {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return slices.DeleteFunc(parts, func(p string) bool { return p == "" })
}
