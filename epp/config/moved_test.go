package config

import (
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	plugins "github.com/tandem-serving/tandem/epp/plugin"
)

// TestMovedFields: a parameter that has moved is none of its old plugin, and the producer has the one that is named instead.
func TestMovedFields(t *testing.T) {
	parameters := func(typ string) (names []string) {
		i := slices.IndexFunc(plugins.Table, func(r epp.Row) bool { return r.Type == typ })
		if i < 0 {
			t.Fatalf("there is no plugin %s", typ)
		}
		for _, f := range fieldsOf(reflect.TypeOf(plugins.Table[i].New()).Elem(), nil) {
			names = append(names, f.name)
		}
		return names
	}
	target := regexp.MustCompile(`approx-prefix-cache-producer \((\w+)`)
	producer := parameters("approx-prefix-cache-producer")
	for typ, fields := range movedFields {
		own := parameters(typ)
		for field, instead := range fields {
			if slices.Contains(own, field) {
				t.Errorf("%s still has %s", typ, field)
			}
			if to := target.FindStringSubmatch(instead); to != nil && !slices.Contains(producer, to[1]) {
				t.Errorf("%s of %s: the producer has no %s", field, typ, to[1])
			}
		}
	}
}
