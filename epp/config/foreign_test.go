package config

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	plugins "github.com/tandem-serving/tandem/epp/plugin"
)

// TestForeignTypes: no plugin of the table is on the lists of foreign types, no type is on both, and each says why.
func TestForeignTypes(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range plugins.Table {
		for _, name := range slices.Concat([]string{row.Type}, row.Aliases, row.Deprecated) {
			seen[name] = true
		}
	}
	for _, f := range ForeignTypes() {
		if seen[f.Type] {
			t.Errorf("%s is served, or listed twice", f.Type)
		}
		seen[f.Type] = true
		if f.Why == "" {
			t.Errorf("%s has no reason", f.Type)
		}
	}
}

// TestDefaultTypes: all types that this package names are in the table, and have the interfaces they are named for.
func TestDefaultTypes(t *testing.T) {
	types := map[string]epp.Row{}
	for _, row := range plugins.Table {
		types[row.Type] = row
	}
	for _, name := range []string{typeSingleHandler, typePicker, typeMetrics, typeExtractor} {
		if _, ok := types[name]; !ok {
			t.Errorf("there is no %s", name)
		}
	}
	for _, rule := range producers {
		row, ok := types[rule.producer]
		if !ok {
			t.Errorf("there is no %s", rule.producer)
			continue
		}
		instance, err := row.New().Build(&epp.Builder{Name: rule.producer, Log: quiet, Keep: &epp.Keep{}})
		if err != nil || !rule.is(instance) {
			t.Errorf("%s is not what it is added for: %T, %v", rule.producer, instance, err)
		}
		for _, reader := range rule.readers {
			if _, ok := types[reader]; !ok {
				t.Errorf("there is no %s", reader)
			}
		}
	}
}
